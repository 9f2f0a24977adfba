"""Keys of providers, by the variable that holds one, and addresses: checked before a client library is imported, which
takes seconds."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from coachrl.coach.clients.secrets import without_secrets
from coachrl.errors import CoachUnavailable, KeyMissing
from coachrl.storage.files import current_folder

KEY_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "xai": ("XAI_API_KEY",),
    "groq": ("GROQ_API_KEY",),
    "together_ai": ("TOGETHERAI_API_KEY",),
    "cohere": ("COHERE_API_KEY",),
    "deepinfra": ("DEEPINFRA_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
}
"""Provider, as LiteLLM calls it -> variables of which one is enough. Only providers whose key is all that they need."""

SENT_VARIABLES = {**KEY_VARIABLES, "hosted_vllm": ("HOSTED_VLLM_API_KEY",)}  # of whoever is sent a key, needed or not

_OTHER_ADDRESSES = {
    "bedrock": ("AWS_BEDROCK_RUNTIME_ENDPOINT",),
    "datarobot": ("DATAROBOT_ENDPOINT",),
    "gradient_ai": ("GRADIENT_AI_AGENT_ENDPOINT",),
    "huggingface": ("HF_API_BASE",),
    "meta_llama": ("LLAMA_API_BASE",),
    "mistral": ("MISTRAL_AZURE_API_BASE",),
    "watsonx": ("WATSONX_URL", "WML_URL", "WX_URL"),
}  # variables of addresses that are not named as most are

VERTEX_VARIABLES = ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
GEMINI_ACCESS = (
    "set GEMINI_API_KEY, or for Vertex AI GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and Google credentials "
    "(gcloud auth application-default login)"
)


def key_of(provider: str) -> str | None:
    """The key that the environment holds for a provider of the table above."""
    return next((value for name in KEY_VARIABLES[provider] if (value := os.environ.get(name))), None)


def address_in_environment(provider: str) -> str | None:
    """Where the environment sends what is asked of a provider: all addresses in variables of its own, most of which are
    named after it (`OLLAMA_API_BASE` for ollama_chat), since each has its own order. None where there is none."""
    provider = provider.removeprefix("text-completion-").removesuffix("_text")  # another door to the same servers
    asked = provider.replace("_", "").upper()
    found = [address for name in _OTHER_ADDRESSES.get(provider, ()) if (address := os.environ.get(name))]
    for name, address in sorted(os.environ.items()):
        whose = name.removesuffix("_API_BASE").removesuffix("_BASE_URL")
        if address and whose and whose != name and asked.startswith(whose.replace("_", "")):
            found.append(address)
    return " ".join(found) or None


def check_sendable(provider: str | None) -> None:
    """Raises CoachUnavailable that names the variable whose key no HTTP header can hold, as one that a line end was
    pasted with: most libraries say of it no more than that the connection failed."""
    for name in SENT_VARIABLES.get(provider or "", ()):
        value = os.environ.get(name, "")
        if not (value.isascii() and value.isprintable()):
            raise CoachUnavailable(f"{name} holds a line end, or another character that no key has: set it anew")


def check_address(address: str | None) -> None:
    """Raises CoachUnavailable where the address of a server is no URL. Of one without its http:// client libraries say
    no more than that the connection broke."""
    if not address:
        return
    try:
        url = urlsplit(address)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets that are not closed, a port beyond 65535
        is_url = False
    if any(sign.isspace() for sign in address):
        raise CoachUnavailable("the address of a server holds a blank or a line end: leave that out")
    if not is_url:
        shown = without_secrets(address.rpartition("@")[2])  # without a password, too
        raise CoachUnavailable(f"the address '{shown}' is no URL; one is http://127.0.0.1:8000/v1")


def wants_vertex(model: str) -> bool:
    """Whether Google's library reaches a Gemini model ("gemini/...", "vertex_ai/...") at Vertex AI: where the name or
    the environment says so, or where there is a project and no API key."""
    if model.startswith("vertex_ai/"):
        return True
    if any(os.environ.get(name, "").lower() in ("1", "true") for name in VERTEX_VARIABLES):
        return True
    return bool(os.environ.get("GOOGLE_CLOUD_PROJECT")) and key_of("gemini") is None


def needs_key(model: str, google_library: bool) -> KeyMissing:
    """What is said where the key of `model`, "provider/model", is missing."""
    provider = model.partition("/")[0]
    how = f"set {KEY_VARIABLES[provider][0]} in the environment"
    return KeyMissing(f"coach '{model}' needs a key: {GEMINI_ACCESS if google_library else how}")


def provider_of(name: str) -> str | None:
    """The provider of a model, "provider/model" or a bare well-known name, as far as LiteLLM's price table tells; None
    where only LiteLLM itself can tell."""
    if "/" in name:
        return name.partition("/")[0]
    package = litellm_folder()
    table = package / "model_prices_and_context_window_backup.json" if package is not None else None
    if table is None or not table.is_file():
        return None
    prices = json.loads(table.read_text(encoding="utf-8"))
    if f"gemini/{name}" in prices:
        return "gemini"
    entry = prices.get(name)
    return str(entry["litellm_provider"]) if entry is not None and entry.get("mode") in ("chat", "responses") else None


def may_come_from_a_file() -> bool:
    """Whether there is an `.env` file that LiteLLM may read keys from once it is imported."""
    package, here = litellm_folder(), current_folder()
    places = [*(Path(here, "here").parents if here else ()), *(package.parents if package is not None else ())]
    return any((place / ".env").exists() for place in places)


def litellm_folder() -> Path | None:
    """Where LiteLLM is installed; None where it is not."""
    found = importlib.util.find_spec("litellm")
    return Path(found.origin).parent if found is not None and found.origin is not None else None
