"""Every example of docs/tasks.md works as it is typed."""

import importlib.util
import re
from pathlib import Path

import pytest
from typed_examples import typed

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^##+ ([^\n]*)\n(?:(?!^#).)*?^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
FOUND = {
    "JSON and JSON lines": "math: 2 training, 1 held out",
    "CSV, and fields with other names": "math: 2 training, 1 held out",
    "Solutions in place of answers: MATH and GSM8K": "math: 2 training, 1 held out",
    "Parquet": "math: 16 training, 4 held out",
    "A Hugging Face data set": "math: 1 training, 1 held out",
    "A folder from Kaggle": "dsbench: 1 training, 1 held out",
    "DSBench's own files": "dsbench: 1 training, 1 held out",
    "Programs with tests": "code: 1 training, 1 held out",
    "A function of your own": "my_tasks:load: 36 training, 4 held out",
}
NEEDS = {"Parquet": "pyarrow", "A Hugging Face data set": "datasets"}


def test_the_page_has_these_examples():
    assert EXAMPLES.keys() == FOUND.keys()


@pytest.mark.parametrize("title", FOUND)
def test_an_example_works_as_it_is_typed(tmp_path, title):
    if title in NEEDS and importlib.util.find_spec(NEEDS[title]) is None:
        pytest.skip(f"the extra 'datasets' is not installed: no {NEEDS[title]}")
    pytest.importorskip("torch", reason="a dry run needs the torch extra")
    done = typed(EXAMPLES[title], tmp_path / "here", HF_DATASETS_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert f"tasks             {FOUND[title]}\n" in done.stdout, done.stdout
