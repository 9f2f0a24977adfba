"""The notebook of examples/ runs from its first cell to its last, and was executed before it was committed."""

import json
import sys
import types
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def source(cell):
    return "".join(cell["source"])


def test_its_outputs_are_those_of_one_execution_without_an_error():
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    outputs = [output for cell in CELLS for output in cell["outputs"]]
    assert "error" not in {output["output_type"] for output in outputs}
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= shown
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.usefixtures("bare_sandboxes")
def test_its_cells_run_in_order(roomy_model, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("cells_of_the_notebook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, cell in enumerate(CELLS, 1):
        exec(compile(source(cell), f"cell {number}", "exec"), module.__dict__)
        if "parameters" in cell["metadata"].get("tags", ()):
            module.MODEL, module.TASKS_PER_STEP, module.HELD_OUT = str(roomy_model), 1, 1
    assert (tmp_path / "runs" / "latest" / "report.html").is_file()
    assert module.scores.shape == (3, 2)
