"""Writes a tabular task in DSBench's layout: the tables that agents see, the answers, and the lines that list it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd


@dataclass(frozen=True)
class TabularTask:
    """What a task list and the cleaned prompts say of one task. about: what a row is and what is asked."""

    name: str
    category: str
    metric: str
    target: str
    about: str
    id_column: str = "id"

    def list_line(self) -> str:
        """Its line in a task list."""
        metadata = {
            "task_id": self.name,
            "task_type": "data_modeling",
            "data_type": self.category,
            "train_file": f"data_resplit/{self.name}/train.csv",
            "test_file": f"data_resplit/{self.name}/test.csv",
            "answer_dir": f"answers/{self.name}",
        }
        return json.dumps({"prompt": self.about, "answer": None, "metadata": metadata}) + "\n"

    def cleaned_prompt(self) -> dict[str, str]:
        """What the cleaned prompts declare of it."""
        return {
            "cleaned_prompt": self.about,
            "task_type": self.category,
            "metric": self.metric,
            "target_column": self.target,
            "id_column": self.id_column,
        }

    def folders(self, root: Path) -> tuple[Path, Path]:
        """Of its data, and of its answers."""
        return root / "data_resplit" / self.name, root / "answers" / self.name

    def write_tables(self, root: Path, train: pd.DataFrame, test: pd.DataFrame) -> None:
        """Both tables hold the target; that of test goes to the answers alone. Raises OSError."""
        data, answers = self.folders(root)
        data.mkdir(parents=True)
        answers.mkdir(parents=True)
        train.to_csv(data / "train.csv", index=False, lineterminator="\n")
        test.drop(columns=self.target).to_csv(data / "test.csv", index=False, lineterminator="\n")
        test[[self.id_column, self.target]].to_csv(answers / "test_answer.csv", index=False, lineterminator="\n")
