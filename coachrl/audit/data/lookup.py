"""The texts behind single figures: what an action said, and what each rater wrote about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coachrl.jsonl import readable_jsonl


@dataclass(frozen=True)
class ActionText:
    """One action for people to read. rationales: rescore label -> rationale; the run's own under ""."""

    role: str
    asked: str
    text: str
    output: str
    rationales: Mapping[str, str]


def find_texts(runs: Mapping[str, Path], wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], ActionText]:
    """(run, action id) -> its texts, for those that are found. runs: name -> folder."""
    found: dict[tuple[str, str], ActionText] = {}
    for name, folder in runs.items():
        ids = {action for run, action in wanted if run == name}
        if not ids:
            continue
        rationales = _rescore_rationales(folder, ids)
        for path in sorted((folder / "episodes").glob("step-*.jsonl")):
            for action in _actions(path, ids):
                own = (action.get("score") or {}).get("rationale", "")
                execution = action.get("execution") or {}
                found[name, action["id"]] = ActionText(
                    role=action["role"],
                    asked=action["prompt_text"],
                    text=action["text"],
                    output="\n".join(part for part in (execution.get("stdout"), execution.get("stderr")) if part),
                    rationales={"": own, **rationales.get(action["id"], {})},
                )
    return found


def _actions(path: Path, ids: Collection[str]) -> list[Mapping[str, Any]]:
    def wanted(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [action for action in record["actions"] if action["id"] in ids]

    said: list[str] = []  # by the table's reader already
    return [action for actions in readable_jsonl(path, wanted, said) for action in actions]


def _rescore_rationales(folder: Path, ids: Collection[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("rescores/*/scores.jsonl")):
        for action_id, rationale in readable_jsonl(path, _rationale, []):
            if action_id in ids:
                found.setdefault(action_id, {})[path.parent.name] = rationale
    return found


def _rationale(record: Mapping[str, Any]) -> tuple[str, str]:
    return str(record["action_id"]), str(record.get("rationale") or "")
