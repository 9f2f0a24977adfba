"""An episode as text, for people at a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from coachrl.text import clip_middle, printable, shown
from coachrl.types import CoachScore, Episode


def print_episode(console: Console, episode: Episode, scores: Mapping[str, CoachScore]) -> None:
    """Every action with what it read, wrote and ran, and the coach's word on it; then the outcome."""
    console.rule(Text(printable(f"{episode.id}  ({episode.task_category})")), align="left")
    for action in episode.actions:
        console.print(Text(f"\n{printable(action.role)}, turn {action.turn + 1}", style="bold"))
        console.print(Text(_indent(clip_middle(action.prompt_text)), style="dim"))
        console.print(Text(_indent(clip_middle(action.text), "  > ")))
        if action.execution is not None:
            console.print(Text(_indent(f"[{action.execution.state}] {shown(action.execution)}", "  $ ")))
        if environment := "\n".join(filter(None, (action.result, action.rendering))):
            console.print(Text(_indent(clip_middle(environment), "  = ")))
        if action.reward is not None:
            console.print(Text(f"  = team {action.reward.team:.2f}, own {action.reward.local:.2f}", style="cyan"))
        score = scores.get(action.id)
        if score is not None:
            given = f"{score.process_0_10:.1f}" if score.process_0_10 is not None else score.status
            given = ", ".join([given, *score.remarks])
            console.print(Text(_indent(f"coach {given}: {score.rationale}", "  * "), style="cyan"))
    verdict = "success" if episode.outcome.success else ": ".join(filter(None, ["no success", episode.outcome.reason]))
    console.print(Text(f"\n{printable(episode.infra_error or verdict)}\n", style="bold"))


def _indent(text: str, mark: str = "    ") -> str:
    return "\n".join(mark + line for line in printable(text).splitlines())
