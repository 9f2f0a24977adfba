"""Whose doing the end of an app is, what a grader says, which token reaches which episode: no server runs."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from coachrl.config import PipelineConfig
from coachrl.errors import AppBroken, AppFailed, ConfigError, ContextOverflow, GraderFailed
from coachrl.gateway import episode_tokens
from coachrl.gateway.apps import Endpoint, _Tail, app_environment
from coachrl.gateway.calls import EpisodeEnded, NotGiven, WrongToken
from coachrl.gateway.episode_tokens import Episodes
from coachrl.gateway.grading import graded
from coachrl.gateway.pipeline import _spent
from coachrl.pipelines import make_pipeline
from coachrl.types import Outcome, Task, Usage

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

TASK = Task("t", "k", "p", ground_truth="5")


def app(task, endpoint): ...


def gives(task, result):
    return result


async def gives_later(task, result):
    return result


def fails(task, result):
    raise KeyError(task.ground_truth)


def pipeline(**options):
    own = {"run": f"{__name__}:app", "grade": f"{__name__}:gives", "roles": {"planner": {}}, **options}
    return make_pipeline(PipelineConfig(name="gateway", options=own))


@pytest.mark.parametrize(
    ("overflowed", "answered", "unheard", "refusal", "crashes", "blamed"),
    [
        (1, 0, 1, NotGiven("it fell"), "fail", ContextOverflow),
        (0, 0, 0, None, "fail", AppBroken),
        (0, 1, 1, None, "fail", AppBroken),
        (0, 1, 0, NotGiven("it fell"), "fail", AppBroken),
        (0, 1, 0, NotGiven("not that"), "fail", AppFailed),
        (0, 1, 0, None, "fail", AppFailed),
        (0, 1, 0, None, "leave_out", AppBroken),
    ],
)
def test_whose_doing_it_is_that_an_app_failed(overflowed, answered, unheard, refusal, crashes, blamed):
    noted = []
    episode = SimpleNamespace(
        overflowed=overflowed,
        answered=answered,
        unheard=unheard,
        refusal=refusal,
        note=lambda *said: noted.append(said),
    )
    assert type(pipeline(crashes=crashes)._blamed(AppFailed("it fell"), episode)) is blamed
    assert bool(noted) is (blamed is AppFailed), "what is trained on is said in the log"


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (True, Outcome(True)),
        (False, Outcome(False)),
        (np.bool_(True), Outcome(True)),
        (0.5, Outcome(True, {"grade": 0.5}, summary="The grade is 0.5.")),
        (0.49, Outcome(False, {"grade": 0.49}, summary="The grade is 0.49.")),
        (np.float32(0.25), Outcome(False, {"grade": 0.25}, summary="The grade is 0.25.")),
        (1, Outcome(True, {"grade": 1.0}, summary="The grade is 1.")),
        (Outcome(False, {"tests": 3.0}), Outcome(False, {"tests": 3.0})),
    ],
)
@pytest.mark.parametrize("grade", ["gives", "gives_later"])
async def test_what_a_grader_gives_counts_from_the_limit_up(given, outcome, grade):
    assert await graded(f"{__name__}:{grade}", TASK, given, success_at=0.5, limit_s=60) == outcome


@pytest.mark.parametrize("given", [float("nan"), float("inf"), 10**400, "good", None, [1.0]])
async def test_what_is_no_grade_is_refused(given):
    with pytest.raises(ConfigError, match="where it must give an Outcome, a bool or a number"):
        await graded(f"{__name__}:gives", TASK, given, success_at=0.5, limit_s=60)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Outcome(True, None), "metrics are None, no numbers by name"),
        (Outcome(True, {"near": 10**400}), r"metric 'near' is 1000.*, no finite number"),
        (Outcome("yes"), "success is 'yes', neither True nor False"),
    ],
)
async def test_an_outcome_that_cannot_be_written_down_is_the_graders_fault(given, words):
    with pytest.raises(ConfigError, match=rf"grader {__name__}:gives gave an Outcome whose {words}"):
        await graded(f"{__name__}:gives", TASK, given, success_at=0.5, limit_s=60)


async def test_a_grader_is_given_the_whole_task_and_its_error_is_no_grade():
    with pytest.raises(GraderFailed, match="raised KeyError: '5' for the result 'r'"):
        await graded(f"{__name__}:fails", TASK, "r", success_at=0.5, limit_s=60)


def test_a_token_reaches_its_own_episode_until_that_is_over(monkeypatch):
    monkeypatch.setattr(episode_tokens, "_MOST_ENDED", 2)
    episodes, ended = Episodes(), []
    with episodes.admitted(SimpleNamespace(models=("a",))) as first:
        with episodes.admitted(SimpleNamespace(models=("b",))) as second:
            assert (episodes.models(first), episodes.models(second)) == (("a",), ("b",)) and first != second
        with pytest.raises(EpisodeEnded):
            episodes.models(second)
        assert episodes.models(first) == ("a",)
    for _ in range(1):
        with episodes.admitted(SimpleNamespace(models=())) as token:
            ended.append(token)
    for token in (first, *ended):
        with pytest.raises(EpisodeEnded):
            episodes.models(token)
    for token in (second, "", "coachrl-"):  # the oldest of too many is no token any more
        with pytest.raises(WrongToken):
            episodes.models(token)


def test_dollars_of_providers_are_told_where_all_are_known():
    paid, free, unknown = (Usage(attempts=1, cost_usd=usd) for usd in (0.25, 0.0, None))
    assert _spent([]) == {}
    assert _spent([paid, paid, free]) == {"external/calls": 3.0, "external/usd": 0.5}
    assert _spent([paid, unknown]) == {"external/calls": 2.0}


@pytest.mark.parametrize(("concurrency", "processes", "each"), [(7, 1, 7), (7, 3, 2), (2, 3, 1)])
async def test_apps_run_side_by_side_as_the_processes_share_them_out(concurrency, processes, each):
    made = pipeline(concurrency=concurrency)
    made.share_out(processes)
    places = made._in_this_loop().places
    for _ in range(each):
        assert not places.locked()
        await places.acquire()
    assert places.locked()


def test_an_app_gets_our_environment_without_secrets_and_its_own_team():
    ours = {
        "PATH": "/bin",
        "My_Api_Key": "1",
        "hf_token": "2",
        "DB_PASSWORD": "3",
        "AWS_CREDENTIALS": "4",
        "no_proxy": "x",
    }
    ours |= {"DATABASE_URL": "postgres://me:7@db/x", "HTTPS_PROXY": "http://me:8@proxy:3128", "MYSQL_PWD": "9"}
    ours |= {"A_SECRET": "5", "KEEP_TOKEN": "6", "OPENAI_API_KEY": "ours", "OPENAI_BASE_URL": "theirs"}
    found = app_environment(Endpoint("http://127.0.0.1:5/v1", "t0"), ours, frozenset({"KEEP_TOKEN"}))
    assert found == {
        "PATH": "/bin",
        "KEEP_TOKEN": "6",
        "OPENAI_BASE_URL": "http://127.0.0.1:5/v1",
        "OPENAI_API_BASE": "http://127.0.0.1:5/v1",
        "OPENAI_API_KEY": "t0",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:5",
        "ANTHROPIC_API_KEY": "t0",
        "NO_PROXY": "x,127.0.0.1",
        "no_proxy": "x,127.0.0.1",
    }
    assert (
        app_environment(Endpoint("http://h/v1", "t"), {"NO_PROXY": "a", "no_proxy": "b"}, frozenset())["no_proxy"]
        == "a,b,h"
    )


async def kept_of(most, *parts):
    """What is kept of a process that prints these parts."""
    tail, stream = _Tail(most), asyncio.StreamReader()
    for part in parts:
        stream.feed_data(part)
    stream.feed_eof()
    await tail._read(stream)
    return tail


@pytest.mark.parametrize(
    ("printed", "line"),
    [(b"one\ntwo\n \n\n", "two"), (b"one", "one"), (b"", ""), (b"\n", ""), (b"a\n\xff b", "\ufffd b")],
)
async def test_a_result_is_the_last_line_that_says_something(printed, line):
    assert (await kept_of(100, printed)).last_line() == line


async def test_of_all_that_is_printed_the_end_is_kept_and_a_longer_last_line_is_told():
    assert (await kept_of(10, b"x" * 90, b"\n", b"1234567890")).last_line() == "1234567890"
    with pytest.raises(AppFailed, match="the last line that it printed has more than 10 bytes"):
        (await kept_of(10, b"x" * 50, b"\n12345678901")).last_line()
