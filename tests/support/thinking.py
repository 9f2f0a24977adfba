"""A tokenizer whose prompts show what was asked of them."""

from coachrl.testing.scripted import CharacterTokenizer


class ThinkingTokenizer(CharacterTokenizer):
    """Its prompts show where a reply is opened with thinking."""

    def encode_chat(self, messages, thinking=False, tools=()):
        return (*super().encode_chat(messages), *map(ord, "<thinks>" * thinking))
