"""`mixdim.theory`, another name of `mixdim.lab.theory`. Knows nothing else."""

import sys

from mixdim.lab import theory

sys.modules[__name__] = theory
