"""Chat text to token ids and back. Sampled ids are kept as they are; text is never tokenised again to train on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from coachrl.errors import PolicyError
from coachrl.parsing import read_json
from coachrl.pipelines.generation import Message
from coachrl.text import brief, one_line, said
from coachrl.trainers.backends.torch.models.adapter_folders import whole_model
from coachrl.trainers.backends.torch.models.sources import files_state, read_config, why_not_loaded

_MARKER = "\u2039reply\u203a"  # stands for the assistant's reply while the template's own text around it is looked up
_DELIMITER = re.compile(r"(?!.*th(?:ink|ought))\S*[^\w\s]\S*", re.IGNORECASE)  # no word, no blank, no tag of thoughts
# Of several tokens: <|user|> of Zephyr, [INST] of Mistral, <<SYS>> of Llama 2.
_WRITTEN_OUT = re.compile(r"<\|\w+\|>|\[/?[A-Z_]{2,}\]|<</?SYS>>")


class ChatTokenizer:
    """`PolicyTokenizer` over a Hugging Face tokenizer and its chat template.

    context_length: tokens that the model takes, prompt and reply together. eos_ids: every id that ends a reply.
    """

    def __init__(self, model: str | Path) -> None:
        """Raises PolicyError where the model has no tokenizer, no chat template or no known context length."""
        self.folder = whole_model(model)
        try:
            self._tokenizer: Any = _load(self.folder, files_state(self.folder))
        except Exception as error:  # whatever a library makes of files that are not as it expects them
            raise PolicyError(f"model {model}: its tokenizer cannot be loaded: {why_not_loaded(error)}") from error
        template = self._tokenizer.chat_template
        if not template:
            raise PolicyError(f"model {model}: its tokenizer has no chat template; take an instruction-tuned model")
        self.knows_thinking = "enable_thinking" in str(template)
        # In the form that calls are read in; templates that teach another form are told of tools in words instead.
        self.knows_tools = "tools" in str(template) and "<tool_call>" in str(template)
        self._control = self._control_tokens()
        config = read_config(self.folder).get_text_config()
        self._vocabulary: int | None = getattr(config, "vocab_size", None)
        self.context_length = _context_length(self.folder, config)
        named = _eos_ids(self.folder, self._tokenizer.eos_token_id)
        self.eos_ids = frozenset(i for i in named if self._vocabulary is None or i < self._vocabulary)
        if not self.eos_ids:
            raise PolicyError(f"model {model}: neither tokenizer nor generation_config.json names an end-of-turn token")

    def encode_chat(
        self, messages: Sequence[Message], thinking: bool = False, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Token ids of the conversation, ending where the assistant's next reply begins."""
        return self._encode(self._render([self._defused(message) for message in messages], thinking, tools))

    def encode_reply(self, text: str) -> tuple[int, ...]:
        """Token ids of an assistant's reply as a policy would have sampled it: the text and the end of its turn."""
        after = self._after_reply([{"role": "user", "content": ""}], thinking=False)
        end = after[:1] if after and after[0] in self.eos_ids else (min(self.eos_ids),)
        return self._encode(self._defuse(text)) + end

    def continue_chat(
        self,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        messages: Sequence[Message],
        thinking: bool = False,
    ) -> tuple[int, ...]:
        """`prompt_ids`, `response_ids` exactly as sampled, then `messages` and the opening of the next reply.

        What the template puts between two turns is read off a rendered conversation. It begins with the end-of-turn
        token, which is left out where the sampled reply already ends with it.
        """
        after = self._after_reply([self._defused(message) for message in messages], thinking)
        if response_ids and after and response_ids[-1] == after[0] and after[0] in self.eos_ids:
            after = after[1:]
        return (*prompt_ids, *response_ids, *after)

    def encode_opening(self, text: str) -> tuple[int, ...]:
        """Token ids of what a reply is made to begin with, to stand at the end of its prompt."""
        return self._encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _after_reply(self, messages: Sequence[Message], thinking: bool) -> tuple[int, ...]:
        """Ids of the template's text from the end of an assistant's reply to the opening of the next one, with
        `messages` between the two."""
        before: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARKER}]
        _, found, after = self._render([*before, *messages], thinking).partition(_MARKER)
        if not found:
            raise PolicyError(f"model {self.folder}: its chat template drops the assistant's replies")
        return self._encode(after)

    def _render(self, messages: Sequence[Message], thinking: bool, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        options: dict[str, Any] = {"enable_thinking": thinking} if self.knows_thinking else {}
        if tools:
            options["tools"] = [self._defused(tool) for tool in tools]
        try:
            text = str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, **options
                )
            )
            text.encode()  # no tokenizer takes half a character
        except Exception as error:  # a template is a program of the model's
            reason = one_line(said(error)) or type(error).__name__
            raise PolicyError(f"model {self.folder}: its chat template refuses the conversation: {reason}") from error
        return text

    def _encode(self, text: str) -> tuple[int, ...]:
        """Raises PolicyError for ids that the model has no embedding of."""
        ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
        if self._vocabulary is not None and ids and max(ids) >= self._vocabulary:
            raise PolicyError(
                f"model {self.folder}: its tokenizer gives the id {max(ids)}, and config.json says that the vocabulary "
                f"has {self._vocabulary} (vocab_size): they belong to different models"
            )
        return ids

    def _control_tokens(self) -> list[str]:
        """The tokens by which the model tells turns apart, longest first: all that its tokenizer knows as special, not
        those with a name alone (Llama 3 names neither `<|start_header_id|>` nor `<|eom_id|>`), and what the template
        writes between turns (those of DeepSeek are not special, and those of Zephyr no tokens at all). Not so the tags
        of thoughts that some templates write into each turn: a prompt may speak of them, and a reply may hold them."""
        added = self._tokenizer.added_tokens_decoder.values()
        turns = self._between_turns()
        written = [*(str(token) for token in added if str(token) in turns), *_WRITTEN_OUT.findall(turns)]
        between = filter(_DELIMITER.fullmatch, written)
        special = (str(token) for token in added if token.special)
        return sorted({*self._tokenizer.all_special_tokens, *special, *between}, key=len, reverse=True)

    def _between_turns(self) -> str:
        """What the template writes around turns of each role. A system's is among them where that may be: without one
        many templates write their own, whose words are no delimiters."""
        turns: list[Message] = [{"role": role, "content": _MARKER} for role in ("system", "user", "assistant", "user")]
        for messages in (turns, turns[1:]):
            with suppress(PolicyError):  # it says so where it is asked for a conversation
                return self._render(messages, thinking=False).rpartition(_MARKER)[0]
        return ""

    def _defused(self, value: Any) -> Any:
        """A message, a tool's schema, or a part of one, with each of its texts defused."""
        if isinstance(value, Mapping):
            return {self._defused(key): self._defused(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._defused(part) for part in value]
        return self._defuse(value) if isinstance(value, str) else value

    def _defuse(self, text: str) -> str:
        """What a message quotes is data: control tokens spelled out in it must not end a turn or open another."""
        for token in self._control:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
        return text


@lru_cache(maxsize=4)
def _load(folder: Path, _state: tuple[object, ...]) -> Any:
    """Once for the files as they are: a run is checked before its models are loaded, and many begin from one folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _context_length(folder: Path, config: Any) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        raise PolicyError(f"model {folder}: config.json does not say how long a context it takes")
    return length


def _eos_ids(folder: Path, tokenizer_eos: int | None) -> set[int]:
    """The tokenizer's end of turn and those of generation_config.json: some chat models end with either."""
    ids = set() if tokenizer_eos is None else {tokenizer_eos}
    path = folder / "generation_config.json"
    if path.is_file():
        unread = f"model {folder}: its generation_config.json cannot be read"
        settings = read_json(path, unread, PolicyError)
        if not isinstance(settings, dict):
            raise PolicyError(f"{unread}: it holds no settings")
        named = settings.get("eos_token_id")
        listed = named if isinstance(named, list) else [] if named is None else [named]
        if any(type(i) is not int for i in listed):
            raise PolicyError(f"{unread}: its eos_token_id is {brief(named)}, which is no token's id")
        ids.update(listed)
    return ids
