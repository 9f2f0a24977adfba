"""docs/configuration.md says what the settings say."""

import runpy
from pathlib import Path

import pytest

from coachrl.config import RunConfig, load_config, resumable_settings
from coachrl.config.section import sections_in

SCRIPT = Path(__file__).parents[2] / "scripts" / "configuration_page.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def settings(section=RunConfig, prefix=""):
    """(dotted key, field) of everything that is no section."""
    for name, field in section.model_fields.items():
        inner = list(sections_in(field.annotation))
        for part in inner:
            yield from settings(part, f"{prefix}{name}.")
        if not inner:
            yield prefix + name, field


def test_the_page_is_up_to_date(script):
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), f"run python {SCRIPT.name}"


def test_every_setting_is_on_the_page_and_says_what_it_means(script):
    page = script["page"]()
    for key, field in settings():
        assert field.description, key
        assert f"{key.rpartition('.')[2]}`" in page, key


def test_what_a_resumed_run_may_change_is_marked_on_the_page(script):
    marked = {line.split("`")[1] for line in script["page"]().splitlines() if "` ↻" in line}
    assert marked == set(resumable_settings())
    assert {"coach.budget_usd", "coach.api_base", "sandbox.url", "openrlhf.ray_address"} <= marked
    assert not {"seed", "train.learning_rate", "coach.name"} & marked


def test_a_default_on_the_page_reads_back_as_the_default(script):
    rows = [line.split(" | ") for line in script["page"]().splitlines() if line.startswith("| `train.")]
    overrides = [f"{row[0].split('`')[1]}={row[2].strip('`')}" for row in rows]
    assert len(overrides) == len(type(RunConfig().train).model_fields)
    assert load_config(None, overrides).train == RunConfig().train
