"""What every test shares."""

import os

from hypothesis import HealthCheck, settings

# One machine is slower than another; a test is not wrong for it. CI draws the same examples in
# every run, so that a failure there is a failure everywhere.
settings.register_profile("local", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "local")
