"""Configurations of backends by the bare names of their settings."""

from coachrl.config import RunConfig

SECTIONS = ("train", "torch", "sampling", "openrlhf")


def with_settings(config=None, **settings):
    """`config` with other values, which are not checked: a test may go beyond what a run may."""
    config = config or RunConfig()
    for name, value in settings.items():
        section = next(section for section in SECTIONS if name in type(getattr(config, section)).model_fields)
        changed = getattr(config, section).model_copy(update={name: value})
        config = config.model_copy(update={section: changed})
    return config
