"""How hypothesis runs: without deadlines, for noisy machines; in CI always with the same examples."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("mixdim", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("mixdim"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "mixdim")
