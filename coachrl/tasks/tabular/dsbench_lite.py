"""dsbench-lite: small tabular tasks in DSBench's own layout, made at first use from real data that packages carry.

The folder <cache>/dsbench-lite-<version>/ holds data_resplit/, answers/, train.jsonl, eval.jsonl and
cleaned_prompts.json, and is read by `coachrl.tasks.tabular.dsbench` like the official data. <cache> is
`coachrl.resources.cache_folder()`. What the tasks are is in `dsbench_lite.yaml`, their tables in
`dsbench_lite_sets.py`.
"""

from __future__ import annotations

import json
import logging
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from coachrl.errors import TaskError
from coachrl.resources import cache_folder
from coachrl.storage.atomic import folder_aside
from coachrl.tasks.tabular.dsbench import load_dsbench
from coachrl.tasks.tabular.dsbench_lite_sets import TASKS, LiteTask, load_set
from coachrl.types import Task

log = logging.getLogger(__name__)

VERSION = 1  # raise it with any change to what is written
SEED = 20260
MAX_ROWS = 2000
TEST_FRACTION = 0.25


def load_dsbench_lite(split: Literal["train", "eval"], cache: Path | None = None) -> list[Task]:
    """The tasks of one side of the fixed split, made first where they are not there yet.

    Raises TaskError for another split, a package that is not installed, and a cache that cannot be written.
    """
    if split not in ("train", "eval"):
        raise TaskError(f"dsbench-lite has no split {split!r}; its splits are train and eval")
    root = ensure_dsbench_lite(cache or cache_folder())
    return load_dsbench(root, root / f"{split}.jsonl", root / "cleaned_prompts.json")


def ensure_dsbench_lite(cache: Path) -> Path:
    """The folder of the data, made where it is not there. Raises TaskError.

    It is written aside and renamed, so it is whole or absent; of two processes that make it at once, one folder stays.
    """
    final = cache / f"dsbench-lite-{VERSION}"
    if final.is_dir():
        return final
    log.info("making %s", final)
    try:
        with folder_aside(final, may_exist=True) as aside:
            write_dsbench_lite(aside)
    except OSError as error:
        raise TaskError(f"cannot write dsbench-lite into {cache}: {error.strerror}; set COACHRL_CACHE") from error
    return final


def write_dsbench_lite(root: Path) -> None:
    """All tasks in the official layout: the same bytes each time, from the same packages. Raises TaskError, OSError."""
    tables = {source: load_set(source) for source in dict.fromkeys(task.source for task in TASKS)}
    lists: dict[str, list[str]] = {"train": [], "eval": []}
    for task in TASKS:
        task.write_tables(root, *split_table(task, tables[task.source]))
        lists[task.split].append(task.list_line())
    for split, lines in lists.items():
        (root / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    prompts = {task.name: task.cleaned_prompt() for task in TASKS}
    (root / "cleaned_prompts.json").write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")


def split_table(task: LiteTask, table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Shuffled (train, test) rows of a task, both with the target, under random unique ids.

    Rows without target are left out; classes keep their shares on both sides.
    """
    rng = np.random.default_rng([SEED, zlib.crc32(task.name.encode())])
    frame = table.drop(columns=list(task.without)).dropna(subset=task.target)
    frame = frame.iloc[rng.permutation(len(frame))[:MAX_ROWS]]
    features = [column for column in frame if column != task.target]
    ids = rng.choice(np.arange(10_000, 100_000), size=len(frame), replace=False)
    frame = frame[[*features, task.target]].assign(**{task.id_column: ids})[[task.id_column, *features, task.target]]
    train, test = train_test_split(
        frame,
        test_size=TEST_FRACTION,
        stratify=frame[task.target] if task.category == "classification" else None,
        random_state=int(rng.integers(2**31)),
    )
    return train, test
