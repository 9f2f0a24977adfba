import pytest


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from chat_clients import SECRET  # not above: without aiohttp, this would end all of pytest

    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    for name in ("GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_GENAI_USE_VERTEXAI"):
        monkeypatch.delenv(name, raising=False)
