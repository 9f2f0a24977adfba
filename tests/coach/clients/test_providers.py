"""Names, keys, prices and settings of models, before anything is called."""

from typing import Any, Literal

import pytest
from chat_clients import SECRET, client_factory

from coachrl.coach import make_coach
from coachrl.coach.clients.providers import import_litellm, longest_reply, make_provider, price_of
from coachrl.config import CoachConfig
from coachrl.errors import CoachUnavailable, ConfigError
from coachrl.types import Usage

pytest.importorskip("litellm", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


@pytest.mark.parametrize(
    ("name", "resolved"),
    [
        ("gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("gpt-4o", "openai/gpt-4o"),
        ("claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"),
        ("anthropic/claude-that-comes-later", "anthropic/claude-that-comes-later"),
    ],
)
def test_names_resolve(name: str, resolved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    assert make_coach(CoachConfig(name=name)).name == resolved


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gemini", "it is a provider, so name a model of it, as gemini/MODEL"),
        ("openai:gpt-4o", "did you mean 'openai/gpt-4o'"),
        ("gemini-2.5-por", "did you mean 'gemini-2.5-pro'"),
        ("anthropc/claude", "did you mean 'anthropic'"),
        ("llama-3.3-70b-versatile", "did you mean '[a-z_]+/llama-3.3-70b-versatile'"),
        ("", "no coach '' .*, or my_module:MyCoach for your own"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(CoachUnavailable, match=message):
        make_coach(CoachConfig(name=name))


def test_rules_mistyped_are_no_model_that_wants_a_key() -> None:
    with pytest.raises(ConfigError, match="no coach 'rule', did you mean 'rules'"):
        make_coach(CoachConfig(name="rule"))


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("gpt-4o", {"library": "google-genai"}, "reaches Gemini models only"),
        ("gpt-4o", {"thinking_budget": 100}, "takes no coach.thinking_budget"),
        (
            "gemini-2.5-pro",
            {"thinking_budget": 100, "reasoning_effort": "low"},
            "takes one of coach.thinking_budget and",
        ),
        ("mistral/mistral-tiny", {"reasoning_effort": "low"}, "takes no coach.reasoning_effort"),
    ],
)
def test_settings_that_a_model_does_not_take(model: str, settings: dict[str, Any], message: str) -> None:
    pytest.importorskip("google.genai", reason="needs the llm extra")
    with pytest.raises(CoachUnavailable, match=message):
        client_factory(**settings).client(model)


@pytest.mark.parametrize(
    ("model", "at", "library", "client"),
    [
        ("openai/mine", "http://127.0.0.1:1/v1", "auto", "ServerClient"),
        ("hosted_vllm/mine", "http://127.0.0.1:1/v1", "auto", "ServerClient"),
        ("hosted_vllm/mine", "http://127.0.0.1:1/v1", "litellm", "LiteLLMClient"),
        ("openai/gpt-4o", "http://127.0.0.1:1/v1", "auto", "LiteLLMClient"),  # it may have parameters of its own
        ("openai/gpt-4o", None, "auto", "LiteLLMClient"),
        ("gemini/gemini-2.5-pro", None, "auto", "GeminiClient"),
        ("gemini-2.5-pro", "http://127.0.0.1:1", "google-genai", "GeminiClient"),
        ("gemini/gemini-2.5-pro", None, "litellm", "LiteLLMClient"),
    ],
)
def test_who_asks_a_model_goes_by_its_provider_its_address_and_what_the_table_knows(
    model: str, at: str | None, library: Literal["auto", "litellm", "google-genai"], client: str
) -> None:
    pytest.importorskip("google.genai", reason="needs the llm extra")
    assert type(make_provider(model, at, CoachConfig(library=library))).__name__ == client


def test_prices_are_those_of_litellm() -> None:
    litellm = import_litellm("x")
    for model in ("gemini/gemini-2.5-pro", "openai/gpt-4o", "anthropic/claude-sonnet-4-5"):
        price = price_of(model, CoachConfig())
        assert price is not None
        into, out = litellm.cost_per_token(model=model, prompt_tokens=3000, completion_tokens=700)
        assert price.of(Usage(tokens_in=3000, tokens_out=700)) == pytest.approx(into + out)
    assert price_of("hosted_vllm/gpt-4o", CoachConfig()) is None


def test_what_the_table_does_not_know_has_the_price_that_is_stated_and_no_longest_reply() -> None:
    stated = price_of("hosted_vllm/mine", CoachConfig(usd_per_million_tokens=(2.0, 8.0)))
    assert stated is not None and stated.of(Usage(tokens_in=1000, tokens_out=100)) == pytest.approx(0.0028)
    table = import_litellm("x").model_cost
    assert longest_reply("openai/gpt-4o") == table["gpt-4o"]["max_output_tokens"]
    assert longest_reply("hosted_vllm/gpt-4o") is None and longest_reply("openai/mine") is None
