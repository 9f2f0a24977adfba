"""The list of models, `GET /v1/models`: one for each role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_CREATED = "1970-01-01T00:00:00Z"  # nobody keeps it


def openai(names: Sequence[str], name: str | None = None) -> dict[str, Any]:
    """All models, or one of them, in OpenAI's form."""
    if name is not None:
        return {"id": name, "object": "model", "created": 0, "owned_by": "coachrl"}
    return {"object": "list", "data": [openai(names, each) for each in names]}


def anthropic(names: Sequence[str], name: str | None = None) -> dict[str, Any]:
    """All models, or one of them, in Anthropic's form."""
    if name is not None:
        return {"type": "model", "id": name, "display_name": name, "created_at": _CREATED, "lifecycle": "active"}
    ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
    return {"data": [anthropic(names, each) for each in names], "has_more": False, **ends}
