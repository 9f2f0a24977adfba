"""Answers as OpenAI's and Gemini's wire formats have them, with whatever a test puts in."""

import json
from typing import Any

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def openai(content: Any, finish_reason: Any = "stop", **more: Any) -> str:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    fixed = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    return json.dumps({**fixed, "choices": [choice], "usage": USAGE, **more})


def gemini(parts: Any, finish_reason: Any = "STOP", **more: Any) -> str:
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": finish_reason}
    return json.dumps({"candidates": [candidate], "usageMetadata": usage, **more})
