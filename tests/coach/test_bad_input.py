"""What a user gets wrong about the coach: one line, exit code 2, before any rollout, and no key shown."""

import asyncio
import sys
from pathlib import Path

import pytest
from scripted_server import ScriptedServer, say, status

from coachrl.cli import main as cli

pytest.importorskip("litellm", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("bare_sandboxes")  # no program runs

SECRET = "sk-0123456789abcdef"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    for name in ("GEMINI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, SECRET)

    async def go(*settings: str) -> str:
        """The one line of the error; the command runs beside this loop, which serves its requests."""
        monkeypatch.setattr(sys, "argv", ["coachrl", "train", "-c", "quickstart", "--model", "tiny-random", *settings])
        with pytest.raises(SystemExit) as caught:
            await asyncio.to_thread(cli.main)
        said = capsys.readouterr().err.strip()
        assert caught.value.code == 2, said
        assert len(said.splitlines()) == 1
        assert SECRET not in said
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".md"]
        return said

    return go


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["coach.budget_usd=0"], "error: coach.budget_usd: Input should be greater than 0 (got 0)"),
        (["coach.fallbacks=[gpt-4o]"], "fallbacks: rules never fail"),
        (["--coach", "gemini-2.5-pro", "coach.thinking_budget=9000"], "leaves no room for an answer"),
        (["--coach", "gemini-2.5-pro", "coach.fallbacks=[gpt-4oh]"], "no coach 'gpt-4oh', did you mean"),
        (["--coach", "openai/mine", "--coach-api-base", "http://127.0.0.1:1/v1", "coach.budget_usd=1"], "price of"),
        (
            ["--coach", "openai/mine", "--coach-api-base", "http://127.0.0.1:1/v1", "coach.max_attempts=1"],
            "http://127.0.0.1:1/v1",
        ),
        (
            ["--coach", "gpt-4o", "--coach-api-base", "http://127.0.0.1:1/v1", "coach.max_attempts=2"],
            "Connection error",
        ),
        (["--coach", "hosted_vllm/mine", "--coach-api-base", "nowhere"], "'nowhere' is no URL"),
        (["--coach", "gpt-4o", "coach.budget_usd=0.0001"], "coach.budget_usd of $0.0001 is reached: $0.0000 are spent"),
        (["--coach", "hosted_vllm/mine"], "coach 'hosted_vllm/mine' is a server of your own: name it with"),
        (["--coach", "gemini-2.5-pro", "coach.cache=/proc/cache.sqlite"], "coach cache /proc/cache.sqlite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_settings_and_addresses(run, settings: list[str], words: str) -> None:
    assert words in await run(*settings)


@pytest.mark.parametrize("model", ["openai/mine", "gpt-4o", "gemini-2.5-pro"])
@pytest.mark.parametrize(("code", "words"), [(401, "refused the key"), (404, "knows no such model")])
async def test_what_the_provider_refuses(run, model: str, code: int, words: str) -> None:
    async with ScriptedServer([status(code, f"no access with {SECRET}")]) as server:
        base = server.gemini_base if model.startswith("gemini") else server.openai_base
        assert words in await run("--coach", model, "--coach-api-base", base)
        assert len(server.requests) == 1


async def test_of_several_variables_that_are_missing_each_is_named(run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_API_KEY", "AZURE_API_BASE", "AZURE_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    words = "needs a key: set AZURE_API_BASE and AZURE_API_KEY and AZURE_API_VERSION in the environment"
    assert words in await run("--coach", "azure/gpt-4o")


@pytest.mark.parametrize("model", ["openai/mine", "gpt-4o", "anthropic/claude-sonnet-4-5"])
async def test_a_server_that_wants_a_key_which_is_not_set(run, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    variable = "ANTHROPIC_API_KEY" if model.startswith("anthropic") else "OPENAI_API_KEY"
    async with ScriptedServer([status(401, "who are you?")]) as server:
        said = await run("--coach", model, "--coach-api-base", server.openai_base)
        assert f"set {variable} in the environment" in said


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (
            "---\nfields: [agent_output, rol]\n---\n{{agent_output}} {{rol}}",
            "unknown field 'rol', did you mean 'role'",
        ),
        ("---\nfields: [task]\n---\n{{task}}", "without {{agent_output}} the coach sees nothing to score"),
        ("---\nfields: [agent_output]\nscore_range: [0, 100]\n---\n{{agent_output}}", "score_range must be [0, 10]"),
    ],
    ids=["unknown", "missing", "range"],
)
async def test_prompts(run, tmp_path: Path, prompt: str, words: str) -> None:
    (tmp_path / "mine.md").write_text(prompt)
    async with ScriptedServer([say("PROCESS_SCORE: 8")]) as server:
        said = await run("--coach", "openai/mine", "--coach-api-base", server.openai_base, "--coach-prompt", "mine.md")
        assert words in said
        assert not server.requests
