"""Actions by hand, for tests of coaches, rewards and whatever else reads them."""

from __future__ import annotations

from typing import Any

from coachrl.types import Action


def make_action(role: str = "solver", text: str = "", *, episode: str = "e", index: int = 0, **fields: Any) -> Action:
    """An action of `role` that wrote `text`: the one at place `index` of the episode, by its id "<episode>/<index>".

    fields: any others of `Action`. What is not said has the plainest value: the first turn, a reply of one token that
    ended by itself, and a log-probability of -1 for each of `response_ids`.
    """
    tokens = len(fields.get("response_ids", (2,)))
    plain: dict[str, Any] = {
        "id": f"{episode}/{index}",
        "policy": role,
        "turn": 0,
        "prompt_ids": (1,),
        "response_ids": (2,),
        "logprobs": (-1.0,) * tokens,
        "finish_reason": "stop",
        "weights_version": 0,
        "prompt_text": "",
    }
    return Action(episode_id=episode, index=index, role=role, text=text, **(plain | fields))
