"""Apps and options that cannot be run are refused with the reason; what rollout workers share of an app."""

import asyncio
import sys
from functools import partial

import gateway_apps
import pytest
from gateway_apps import SEEN, ask, pipeline_of

from coachrl.commands.build import play_of
from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.tree import check_rewards

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

gateway = partial(pipeline_of, __name__)


async def play(pipeline, policy=None, tasks=1, **context):
    return await gateway_apps.play(pipeline, policy or ScriptedPolicy(lambda call: "fine"), tasks, **context)


def hangs(task, endpoint):
    """Is never run."""


def yields(task, endpoint):
    yield ask(endpoint.openai(), "x")


async def yields_async(task, endpoint):
    yield endpoint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give the app either as run, my_app:solve, or as command"),
        ({"run": "json:nothing"}, "app 'json:nothing': module 'json' has no 'nothing'"),
        ({"run": "json:loads"}, r"app 'json:loads' must take \(task, endpoint\)"),
        ({"run": "a:b", "command": "x"}, "either as run"),
        ({"command": "python 'x"}, "pipeline.options.command: No closing quotation"),
        ({"command": "x", "sandboxed": True}, "the sandbox has no network"),
        ({"command": "x", "host": "0.0.0.0"}, "host must be an address that apps can call"),
        ({"command": "x", "roles": {}}, "roles: .*at least 1"),
        ({"command": "x", "roles": {"a": {"polcy": "b"}}}, "gateway has no option 'roles.a.polcy', did you mean"),
        ({"command": "x", "roles": {"a": {"external": "gpt-4o", "policy": "b"}}}, "an external role has no policy"),
        ({"command": "x", "roles": {"a": {"api_base": "http://x"}}}, "api_base is for external roles"),
        ({"command": "x", "roles": {"a": {"external": "no-such-thing"}}}, "no provider is known for the external"),
        ({"command": "x", "grade": "json:dumps2"}, "grader 'json:dumps2'"),
        ({"run": f"{__name__}:hangs", "pass_env": ["A"]}, "pass_env is for a command"),
        ({"command": "x", "roles": {"a/b": {}}}, "role 'a/b'"),
        ({"run": f"{__name__}:yields"}, "app '.*:yields' is a generator: it must .return. its result"),
        ({"run": f"{__name__}:yields_async"}, "app '.*:yields_async' is a generator"),
        ({"command": "x", "grade": f"{__name__}:yields"}, "grader '.*:yields' is a generator"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(options, words):
    if "external" in options.get("roles", {}).get("a", {}):
        pytest.importorskip("litellm", reason="needs the llm extra")
    with pytest.raises(ConfigError, match=words):
        gateway(**options)


def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError, match=r"pipeline gateway needs uvicorn: pip install 'coachrl\[gateway\]'"):
        gateway("hangs")


def test_a_tree_is_refused_with_the_reason():
    evidence = {"evidence": {"ground_truth": "none"}}
    config = RunConfig(algorithm={"name": "at_grpo"}, sampling={"scheme": "tree"}, coach=evidence)
    with pytest.raises(ConfigError, match=r"nobody can copy the state of an app; take sampling.scheme=parallel"):
        check_rewards(config, gateway("hangs"))


AT_ONCE = []


async def counts_itself(task, endpoint):
    AT_ONCE.append(task.id)
    await asyncio.sleep(0)
    seen = len(AT_ONCE)
    await asyncio.sleep(0)
    AT_ONCE.remove(task.id)
    return seen


async def test_rollout_workers_share_the_places_of_apps():
    pipeline = gateway("counts_itself", concurrency=9)
    pipeline.share_out(4)
    await play(pipeline, tasks=8)
    assert max(SEEN[f"t{n}"] for n in range(8)) == 2


def test_rollout_workers_cannot_share_a_port():
    given = {"pipeline": {"name": "gateway", "options": {**gateway("hangs").settings.options, "port": 8123}}}
    config = RunConfig(backend="openrlhf", rollout={"workers": 2}, **given)
    with pytest.raises(ConfigError, match=r"port=8123: 2 rollout workers cannot share one port; .* rollout.workers=1"):
        play_of(config)


def test_rollout_workers_cannot_keep_one_budget_for_external_roles(monkeypatch):
    pytest.importorskip("litellm", reason="needs the llm extra")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    pipeline = gateway("hangs", roles={"planner": {}, "critic": {"external": "openai/gpt-4o"}})
    pipeline.share_out(1)
    with pytest.raises(ConfigError, match=r"external roles are asked by the process that keeps .* rollout.workers=1"):
        pipeline.share_out(2)
