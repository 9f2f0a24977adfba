"""Every Python example of README and docs runs, in the order of its file."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
import yaml
from tiny_models import write_bundled_model_in_small

from coachrl.config import parse_config

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])


def examples(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.stem)
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    if page.stem == "python":  # it trains the bundled model
        monkeypatch.setenv("COACHRL_CACHE", str(write_bundled_model_in_small(tmp_path / "cache")))
    folder = tmp_path / "runs" / "latest"
    (folder / "episodes").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, "eval/success": 0.5}) + "\n")
    action = {"role": "verifier", "score": {"process_0_10": 8.0, "rationale": "boxed"}}
    (folder / "episodes" / "step-000001.jsonl").write_text(json.dumps({"task_id": "t", "actions": [action]}) + "\n")
    monkeypatch.chdir(tmp_path)
    # A module that can be imported: what an example defines is found again by name, as that of a script is.
    module = types.ModuleType(f"example_of_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, code in enumerate(examples(page), 1):
        exec(compile(code, f"{page.name}, example {number}", "exec"), module.__dict__)


def settings(page):
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if settings(page)], ids=lambda page: page.stem)
def test_settings_can_be_used(page):
    for number, text in enumerate(settings(page), 1):
        parse_config(yaml.safe_load(text), f"{page.name}, settings {number}")
