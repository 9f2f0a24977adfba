"""Settings for all tests."""

from hypothesis import settings

settings.register_profile("coachrl", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("coachrl")
