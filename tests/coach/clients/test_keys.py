import os
import shutil
import subprocess
import sys

import pytest

from coachrl.coach.clients import keys
from coachrl.coach.clients.keys import (
    KEY_VARIABLES,
    address_in_environment,
    check_address,
    key_of,
    may_come_from_a_file,
    needs_key,
    provider_of,
    wants_vertex,
)
from coachrl.coach.clients.litellm import import_litellm
from coachrl.coach.clients.providers import check_key, resolve_model
from coachrl.config import CoachConfig
from coachrl.errors import CoachUnavailable

pytest.importorskip("litellm", reason="needs the llm extra")

MODELS = {
    "gemini-2.5-pro": "set GEMINI_API_KEY, or for Vertex AI",
    "claude-sonnet-4-5": "set ANTHROPIC_API_KEY in the environment",
    "gpt-4o": "set OPENAI_API_KEY in the environment",
    "openrouter/some/model": "set OPENROUTER_API_KEY in the environment",
    "hosted_vllm/mine": "name it with --coach-api-base URL",
}


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    for name in os.environ:
        if name.endswith(("_API_KEY", "_AUTH_TOKEN", "_API_BASE")) or name.startswith("GOOGLE_"):
            monkeypatch.delenv(name)


def test_a_missing_key_is_named_before_a_client_library_is_imported():
    program = f"""
import sys
from coachrl.coach.clients.providers import make_provider
from coachrl.config import CoachConfig
from coachrl.errors import CoachUnavailable
for model in {list(MODELS)}:
    try:
        make_provider(model, None, CoachConfig())
    except CoachUnavailable as error:
        print(error)
print([name for name in ("litellm", "openai", "google.genai") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *said, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert len(said) == len(MODELS) and all(words in line for line, words in zip(said, MODELS.values(), strict=True))


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("openai", "OPENAI_BASE_URL"),
        ("text-completion-openai", "OPENAI_BASE_URL"),
        ("text-completion-codestral", "CODESTRAL_API_BASE"),
        ("watsonx_text", "WATSONX_URL"),
    ],
)
def test_an_address_is_found_under_the_name_of_any_door_of_its_provider(monkeypatch, provider, variable):
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert address_in_environment(provider) == "http://127.0.0.1:9"


@pytest.mark.parametrize("provider", KEY_VARIABLES)
def test_the_variables_are_those_that_the_client_library_reads(monkeypatch, provider):
    litellm = import_litellm("any")
    missing = litellm.validate_environment(model=f"{provider}/any")["missing_keys"]
    assert KEY_VARIABLES[provider][0] in missing and set(missing) <= set(KEY_VARIABLES[provider])
    for name in KEY_VARIABLES[provider]:
        with monkeypatch.context() as patched:
            patched.setenv(name, "given")
            assert not litellm.validate_environment(model=f"{provider}/any")["missing_keys"]
            check_key(f"{provider}/any", None, CoachConfig())


@pytest.mark.parametrize("name", ["gemini-2.5-pro", "claude-sonnet-4-5", "gpt-4o", "o3", "deepseek-chat"])
def test_a_bare_name_has_the_provider_that_the_client_library_finds(name):
    assert provider_of(name) == resolve_model(name, import_litellm(name)).partition("/")[0]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8000/v1", "localhost", "http:/127.0.0.1", "http://h:99999/v1", "ftp://h"]
)
@pytest.mark.parametrize("name", ["gemini-2.5-pro", "hosted_vllm/mine"])
def test_an_address_that_is_no_url_is_told_with_one_that_is(monkeypatch, name, address):
    with pytest.raises(CoachUnavailable, match=r"is no URL; one is http://127\.0\.0\.1:8000/v1"):
        check_key(name, address, CoachConfig())
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", address)
    with pytest.raises(CoachUnavailable, match="is no URL"):
        check_key("hosted_vllm/mine", None, CoachConfig())


def test_an_address_that_is_no_url_is_told_without_its_password():
    with pytest.raises(CoachUnavailable, match="the address 'host:80' is no URL") as caught:
        check_address("me:hunter2@host:80")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000/v1 ", "http://h o/v1", "http://h/v1\n"])
def test_an_address_with_a_blank_is_told_of_it(address):
    with pytest.raises(CoachUnavailable, match="holds a blank or a line end"):
        check_address(address)


def test_an_empty_address_is_none(monkeypatch):
    monkeypatch.delenv("HOSTED_VLLM_API_BASE", raising=False)
    with pytest.raises(CoachUnavailable, match=r"of coach\.fallbacks, by the variable HOSTED_VLLM_API_BASE"):
        check_key("hosted_vllm/mine", "", CoachConfig())


def test_addresses_that_are_taken():
    for good in ("http://127.0.0.1:8000/v1", "https://proxy.example", "http://[::1]:80/v1", "", None):
        check_address(good)


def test_what_is_not_known_is_left_to_the_client_library(monkeypatch, tmp_path):
    for name, api_base in (("no-such-model", None), ("nobody/model", None), ("gpt-4o", "http://127.0.0.1:1/v1")):
        check_key(name, api_base, CoachConfig())
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "mine")  # for Vertex AI, which Google's library alone reaches
    check_key("gemini-2.5-pro", None, CoachConfig())
    with pytest.raises(CoachUnavailable, match="set GEMINI_API_KEY in the environment"):
        check_key("gemini-2.5-pro", None, CoachConfig(library="litellm"))
    assert not may_come_from_a_file()
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("OPENAI_API_KEY=one\n")
    assert may_come_from_a_file()
    check_key("gpt-4o", None, CoachConfig())
    shutil.rmtree(tmp_path)  # the current folder, as under a run whose own folder lies elsewhere
    assert not may_come_from_a_file()
    monkeypatch.chdir("/")
    assert not may_come_from_a_file()
    tmp_path.mkdir()
    (tmp_path / ".env").touch()
    monkeypatch.setattr(keys, "litellm_folder", lambda: tmp_path / "litellm")
    assert may_come_from_a_file()  # beside the client library


def test_only_a_model_that_chats_has_a_provider_by_its_bare_name():
    assert provider_of("nobody/model") == "nobody" and provider_of("nobody") is None
    assert provider_of("text-embedding-3-small") is None


@pytest.mark.parametrize(
    ("model", "environment", "vertex"),
    [
        ("gemini/x", {}, False),
        ("vertex_ai/x", {"GEMINI_API_KEY": "k"}, True),
        ("gemini/x", {"GOOGLE_GENAI_USE_VERTEXAI": "True", "GEMINI_API_KEY": "k"}, True),
        ("gemini/x", {"GOOGLE_GENAI_USE_ENTERPRISE": "1"}, True),
        ("gemini/x", {"GOOGLE_GENAI_USE_VERTEXAI": "0"}, False),
        ("gemini/x", {"GOOGLE_CLOUD_PROJECT": "p"}, True),
        ("gemini/x", {"GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_API_KEY": "k"}, False),
        ("gemini/x", {"GOOGLE_CLOUD_PROJECT": ""}, False),
    ],
)
def test_gemini_is_asked_at_vertex_where_the_environment_says_so_or_has_a_project_alone(
    monkeypatch, model, environment, vertex
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_vertex(model) is vertex


def test_the_first_variable_that_holds_a_key_counts_and_the_first_of_all_is_named(monkeypatch):
    assert key_of("gemini") is None
    monkeypatch.setenv("GEMINI_API_KEY", "")
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    assert key_of("gemini") == "second"
    monkeypatch.setenv("GEMINI_API_KEY", "first")
    assert key_of("gemini") == "first"
    assert str(needs_key("anthropic/x", google_library=False)) == (
        "coach 'anthropic/x' needs a key: set ANTHROPIC_API_KEY in the environment"
    )
    assert "for Vertex AI" in str(needs_key("gemini/x", google_library=True))
