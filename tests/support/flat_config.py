"""Configurations of backends by the bare names of their settings."""

from coachrl.config import RunConfig

SECTIONS = ("train", "torch", "sampling", "openrlhf")


def with_settings(config=None, **settings):
    """`config` with other values, which are not checked: a test may go beyond what a run may."""
    config = config or RunConfig()
    # Both backends that train have settings of one name; those of the one that is used are meant.
    ordered = SECTIONS[::-1] if config.backend == "openrlhf" else SECTIONS
    for name, value in settings.items():
        section = next(section for section in ordered if name in type(getattr(config, section)).model_fields)
        changed = getattr(config, section).model_copy(update={name: value})
        config = config.model_copy(update={section: changed})
    return config
