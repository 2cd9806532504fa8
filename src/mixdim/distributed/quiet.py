"""What TorchRec and PyTorch's own code for it warn of and mixdim cannot change. Knows nothing else."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Of the lookup of tables that every rank has, in the backward pass, which is the user's to call. Its
# gradients are right: tests/distributed compares them with those of the plain layer.
NO_AUTOGRAD_KERNEL = "fbgemm::.*an autograd kernel was not registered"

logging.getLogger("torchrec").setLevel(logging.ERROR)
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", NO_AUTOGRAD_KERNEL)
warnings.filterwarnings("ignore", "`torch.distributed.*is deprecated", FutureWarning)


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, deprecations inside of torch and torchrec are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", NO_AUTOGRAD_KERNEL)
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield
