"""The providers of models: which client library reaches one, its full name, its price, its settings."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, Protocol

from coachrl.coach.clients.base import ChatRequest, Reply
from coachrl.coach.clients.budget import Price
from coachrl.config import CoachConfig
from coachrl.errors import CoachUnavailable
from coachrl.text import nearest


@dataclass(frozen=True)
class ClientSettings:
    """How one model is asked.

    timeout_s: of one attempt. thinking_budget: tokens of thinking, 0 for none, -1 for as many as the model likes; None
    leaves it to the provider, as does reasoning_effort ("low", "medium", "high"). structured: hold replies to a JSON
    schema; None: where the model is known to take one. library: "auto" asks Gemini through google-genai, a server of
    one's own (openai/ or hosted_vllm/ with api_base) by plain HTTP, and all others through LiteLLM.
    """

    api_base: str | None = None
    timeout_s: float = 60.0
    thinking_budget: int | None = None
    reasoning_effort: str | None = None
    structured: bool | None = None
    library: Literal["auto", "litellm", "google-genai"] = "auto"


class Provider(Protocol):
    """One model at one provider, asked without retries. price None: not known. options: what beside the request a reply
    depends on. structured: it can be held to a JSON schema."""

    model: str
    structured: bool
    price: Price | None

    @property
    def options(self) -> Mapping[str, Any]: ...

    async def complete(self, request: ChatRequest) -> Reply:
        """One call. `Reply.cost_usd` is left None. Raises what `ChatClient.complete` raises for a provider's doing."""
        ...

    async def close(self) -> None: ...


def make_provider(name: str, settings: ClientSettings) -> Provider:
    """The provider of the model `name`: "provider/model", or a bare well-known name.

    Raises CoachUnavailable for an unknown model, a missing key or package, or settings that the model does not take.
    """
    litellm = import_litellm(name)
    model = resolve_model(name, litellm)
    if model.startswith("hosted_vllm/") and settings.api_base is None:
        settings = replace(settings, api_base=_own_address(name))
    gemini = model.startswith(("gemini/", "vertex_ai/gemini-"))
    if settings.library == "google-genai" and not gemini:
        raise CoachUnavailable(f"coach '{name}': coach.library=google-genai reaches Gemini models only")
    if gemini and settings.library != "litellm" and importlib.util.find_spec("google.genai") is not None:
        from coachrl.coach.clients.gemini import GeminiClient

        return GeminiClient(model, settings, price_of(model, litellm))
    if settings.library == "auto" and _is_own_server(model, settings.api_base, litellm):
        from coachrl.coach.clients.openai_compatible import ServerClient

        return ServerClient(model, settings)
    from coachrl.coach.clients.litellm import LiteLLMClient

    return LiteLLMClient(model, settings, price_of(model, litellm), litellm)


def _own_address(name: str) -> str:
    """LiteLLM would ask OpenAI where no address is given."""
    address = os.environ.get("HOSTED_VLLM_API_BASE")
    if not address:
        raise CoachUnavailable(f"coach '{name}' is a server of your own: name it with --coach-api-base URL")
    return address


def _is_own_server(model: str, api_base: str | None, litellm: ModuleType) -> bool:
    """Whether a model that no table knows is asked for at an address. What is known may have parameters of its own."""
    provider, bare = model.split("/", 1)
    known = bare in litellm.model_cost or model in litellm.model_cost
    return api_base is not None and provider in ("openai", "hosted_vllm") and not known


def price_of(model: str, litellm: ModuleType) -> Price | None:
    """From LiteLLM's table, by the full name, or by the bare one where it is this provider's. None: not known."""
    provider, bare = model.split("/", 1)
    entry = litellm.model_cost.get(model)
    if entry is None and litellm.model_cost.get(bare, {}).get("litellm_provider", "").startswith(provider):
        entry = litellm.model_cost[bare]
    return Price.from_table(entry) if entry is not None else None


def known_price(settings: CoachConfig) -> Price | None:
    """What a token of a coach costs, all members of an ensemble together; None where the price of one is neither known
    nor stated.

    Raises CoachUnavailable for an unknown model."""
    stated = None
    if settings.usd_per_million_tokens is not None:
        into, out = settings.usd_per_million_tokens
        stated = Price.flat(into / 1e6, out / 1e6)
    names = [member.name for member in settings.members if member.name != "rules"]
    prices = []
    for name in names:
        litellm = import_litellm(name)
        prices.append(price_of(resolve_model(name, litellm), litellm) or stated)
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    return Price.flat(sum(price.input_usd for price in known), sum(price.output_usd for price in known))


def import_litellm(model: str) -> ModuleType:
    """LiteLLM, quiet and offline. It takes seconds, so that only what needs it imports it."""
    # LiteLLM otherwise fetches its price table from the network while it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise CoachUnavailable(f"coach '{model}' needs {error.name}: pip install 'coachrl[llm]'") from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


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
    same = sorted(model for model in chat if model.rsplit("/", 1)[-1] == name)
    hint = f", did you mean '{same[0]}'?" if same else nearest(name, ["rules", *chat])
    raise CoachUnavailable(f"no coach '{name}'{hint} (write rules, or provider/model)")
