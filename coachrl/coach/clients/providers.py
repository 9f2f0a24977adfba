"""The providers of models: which client library reaches one, its full name, its price."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from coachrl.coach.base import is_language_model, is_mistyped_rules
from coachrl.coach.clients.base import Provider
from coachrl.coach.clients.budget import Price
from coachrl.coach.clients.gemini import GeminiClient
from coachrl.coach.clients.keys import (
    KEY_VARIABLES,
    check_address,
    check_sendable,
    key_of,
    litellm_folder,
    may_come_from_a_file,
    needs_key,
    provider_of,
    wants_vertex,
)
from coachrl.coach.clients.litellm import LiteLLMClient, import_litellm
from coachrl.coach.clients.openai_compatible import ServerClient
from coachrl.config import CoachConfig
from coachrl.errors import CoachUnavailable, ConfigError
from coachrl.text import nearest


def make_provider(name: str, api_base: str | None, settings: CoachConfig) -> Provider:
    """The provider of the model `name`: "provider/model", or a bare well-known name.

    Raises CoachUnavailable for an unknown model, a missing key or package, or settings that the model does not take.
    """
    check_key(name, api_base := api_base or None, settings)
    litellm = import_litellm(name)
    model = resolve_model(name, litellm)
    if model.startswith("hosted_vllm/") and api_base is None:
        api_base = _own_address(name)
    gemini = model.startswith(("gemini/", "vertex_ai/gemini-"))
    if settings.library == "google-genai" and not gemini:
        raise CoachUnavailable(f"coach '{model}': coach.library=google-genai reaches Gemini models only")
    if gemini and _has_google_library(settings):
        return GeminiClient(model, api_base, settings)
    own_server = api_base is not None and model.startswith(("openai/", "hosted_vllm/"))
    # A model that LiteLLM's table knows may have parameters of its own.
    known = model in litellm.model_cost or model.split("/", 1)[1] in litellm.model_cost
    if settings.library == "auto" and own_server and not known:
        return ServerClient(model, api_base, settings)
    return LiteLLMClient(model, api_base, settings)


def check_key(name: str, api_base: str | None, settings: CoachConfig) -> None:
    """What is known of a model before LiteLLM is imported, which takes seconds. Raises ConfigError for mistyped rules,
    CoachUnavailable for a missing package, address or key, in the client's own words, for a key that cannot be sent
    and an address that is no URL. What is not known here, `make_provider` finds out."""
    if is_mistyped_rules(name):  # before packages and keys, of which rules need none
        raise ConfigError(f"no coach '{name}', did you mean 'rules'?")
    check_address(api_base)
    if litellm_folder() is None:
        import_litellm(name)  # which says how to get it
    provider = provider_of(name)
    check_sendable(provider)
    if api_base or may_come_from_a_file():
        return
    if name.startswith("hosted_vllm/"):
        _own_address(name)
        return
    if provider is None or provider not in KEY_VARIABLES or key_of(provider) is not None:
        return
    model = name if "/" in name else f"{provider}/{name}"
    by_google = provider == "gemini" and _has_google_library(settings)
    if not (by_google and wants_vertex(model)):
        raise needs_key(model, by_google)


def _has_google_library(settings: CoachConfig) -> bool:
    """Whether Gemini is asked by Google's own library, which reaches Vertex AI too."""
    if settings.library == "litellm" or importlib.util.find_spec("google") is None:
        return False
    return importlib.util.find_spec("google.genai") is not None


def _own_address(name: str) -> str:
    """LiteLLM would ask OpenAI where no address is given."""
    address = os.environ.get("HOSTED_VLLM_API_BASE")
    if not address:
        raise CoachUnavailable(
            f"coach '{name}' is a server of your own: name it with --coach-api-base URL, or, of coach.fallbacks, by "
            "the variable HOSTED_VLLM_API_BASE"
        )
    check_address(address)
    return address


def price_of(model: str, settings: CoachConfig, is_needed: bool = False) -> Price | None:
    """What a token of `model` ("provider/model") costs: from LiteLLM's table, else as `settings` state it. None: it
    is not known; raises ConfigError then where it is needed, since a budget is to be kept."""
    entry = _table_entry(model)
    price = Price.from_table(entry) if entry is not None else None
    if price is None and settings.usd_per_million_tokens is not None:
        input_usd, output_usd = settings.usd_per_million_tokens
        return Price.flat(input_usd / 1e6, output_usd / 1e6)
    if price is None and is_needed:
        stated = "state it as coach.usd_per_million_tokens=[input, output]"
        raise ConfigError(f"coach.budget_usd: the price of '{model}' is not known; {stated}")
    return price


def longest_reply(model: str) -> int | None:
    """How many tokens a reply of `model` ("provider/model") has at most, by LiteLLM's table; None: it is not known."""
    longest = (_table_entry(model) or {}).get("max_output_tokens")
    return longest if isinstance(longest, int) and longest > 0 else None


def can_stream(model: str) -> bool:
    """Whether LiteLLM passes a stream of `model` on. Where its table says that there is none, or does not know a model
    that is asked over OpenAI's Responses, it makes one of the whole reply, with the arguments of functions twice."""
    name = model.replace("/responses/", "/", 1)
    entry = _table_entry(name)
    if entry is None:
        return name == model
    return entry.get("supports_native_streaming") is not False


def _table_entry(model: str) -> Mapping[str, Any] | None:
    """What LiteLLM's table says of `model`: by the full name, or by the bare one where it is this provider's."""
    table: Mapping[str, Mapping[str, Any]] = import_litellm(model).model_cost
    provider, bare = model.split("/", 1)
    if model in table:
        return table[model]
    entry = table.get(bare, {})
    return entry if entry.get("litellm_provider", "").startswith(provider) else None


def known_price(settings: CoachConfig) -> Price | None:
    """What a token of a coach costs, all members of an ensemble together; None where the price of one is neither known
    nor stated. Rules are free; nobody knows what a coach of the user's own takes.

    Raises CoachUnavailable for an unknown model."""
    input_usd = output_usd = 0.0
    for member in settings.members:
        if member.name == "rules":
            continue
        if not is_language_model(member.name):
            return None
        price = price_of(resolve_model(member.name, import_litellm(member.name)), settings)
        if price is None:
            return None
        input_usd += price.input_usd
        output_usd += price.output_usd
    return Price.flat(input_usd, output_usd)


def resolve_model(name: str, litellm: ModuleType) -> str:
    """`name` as "provider/model". Raises CoachUnavailable that names the nearest known one."""
    providers = {provider.value for provider in litellm.provider_list}
    if "/" in name:
        provider = name.split("/", 1)[0]
        if provider not in providers:
            raise CoachUnavailable(
                f"coach '{name}': no provider '{provider}'{nearest(provider, providers)} (for a server of your own: "
                f"--coach openai/{name} --coach-api-base URL)"
            )
        return name
    chat = {model: entry for model, entry in litellm.model_cost.items() if entry.get("mode") in ("chat", "responses")}
    # LiteLLM sends bare Gemini names to Vertex AI; an API key reaches them at AI Studio.
    if f"gemini/{name}" in chat:
        return f"gemini/{name}"
    provider = chat.get(name, {}).get("litellm_provider", "").split("-")[0]  # "vertex_ai-language-models" is vertex_ai
    if provider in providers:
        return f"{provider}/{name}"
    if name in providers:
        raise CoachUnavailable(f"no coach '{name}': it is a provider, so name a model of it, as {name}/MODEL")
    if name.partition(":")[0] in providers:  # as other tools write it
        raise CoachUnavailable(f"no coach '{name}', did you mean '{name.replace(':', '/', 1)}'?")
    same = sorted(model for model in chat if model.rsplit("/", 1)[-1] == name)
    module, _, attribute = name.rpartition(".")
    if module and Path(f"{module.replace('.', '/')}.py").is_file():  # a coach of the user's own is named with a colon
        same.append(f"{module}:{attribute}")
    hint = f", did you mean '{same[0]}'?" if same else nearest(name, ["rules", *chat])
    raise CoachUnavailable(f"no coach '{name}'{hint} (write rules, provider/model, or my_module:MyCoach for your own)")
