"""Coaches of the user's own, by import path, in a module that lies in the current folder."""

import asyncio
import itertools
import logging
import shutil
from pathlib import Path

import own_coaches
import pytest
from chat_clients import score_all
from coach_requests import make_action, request_for

from coachrl.coach import make_coach
from coachrl.coach.base import is_language_model
from coachrl.coach.build import make_retrospective_coach
from coachrl.coach.clients.litellm import import_litellm
from coachrl.coach.clients.providers import known_price, resolve_model
from coachrl.coach.kinds.ensemble import EnsembleCoach
from coachrl.coach.kinds.own import OwnCoach, code_of
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig, EvidenceConfig, MemberConfig, RetrospectiveConfig
from coachrl.errors import CoachError, CoachUnavailable, ConfigError
from coachrl.trainers.metrics import cost_metrics
from coachrl.types import CoachScore

REQUEST = request_for(make_action("solver", "3 * 4"))
ID = REQUEST.action.id
NUMBERS = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its name: another one for each test, since Python keeps what it has imported."""
    name = f"my_coaches_{next(NUMBERS)}"
    shutil.copy(own_coaches.__file__, tmp_path / f"{name}.py")
    monkeypatch.chdir(tmp_path)
    return name


def line_of(code: str) -> int:
    """The number of the only line of `own_coaches` with that in it."""
    (number,) = [n for n, line in enumerate(Path(own_coaches.__file__).read_text().splitlines(), 1) if code in line]
    return number


async def score_of(path: str) -> CoachScore:
    (score,) = await score_all(CoachPool(make_coach(CoachConfig(name=path))), [REQUEST])
    return score


@pytest.mark.parametrize(
    ("name", "expected"), [("length", 5.0), ("Mine", 4.0), ("Plain", 3.0), ("of_numpy", 6.0), ("clock_set_back", 5.0)]
)
async def test_functions_and_classes_score(module: str, name: str, expected: float) -> None:
    score = await score_of(f"{module}:{name}")
    assert (score.status, score.process_0_10, score.model) == ("scored", expected, f"{module}:{name}")
    assert score.usage.attempts == 1


@pytest.mark.parametrize(("name", "usd"), [("length", None), ("Mine", None), ("Priced", 0.25), ("Free", 0.0)])
async def test_what_a_score_cost_is_what_the_coach_says_and_else_not_known(
    module: str, name: str, usd: float | None
) -> None:
    score = await score_of(f"{module}:{name}")
    assert score.usage.attempts == 1 and score.usage.cost_usd == usd
    shown = cost_metrics([], {score.action_id: score})
    assert shown.get("cost/usd") == usd, "a sum of what is not known is left out"


@pytest.mark.parametrize("members", [[], ["broken"], ["broken", "too_high"]])
async def test_what_a_failed_score_cost_is_not_known(module: str, members: list[str]) -> None:
    coaches = [OwnCoach(f"{module}:{name}") for name in members]
    pool = CoachPool(EnsembleCoach(coaches) if coaches else OwnCoach(f"{module}:broken"), concurrency=1)
    [score] = await score_all(pool, [REQUEST])
    assert score.status == "failed" and (score.usage.attempts, score.usage.cost_usd) == (1, None)
    assert "cost/usd" not in cost_metrics([], {score.action_id: score})


async def test_a_score_keeps_what_it_says_beside_the_number(module: str) -> None:
    score = await score_of(f"{module}:Mine")
    assert (score.rationale, score.suggestion) == ("said so", "12")
    assert (await score_of(f"{module}:later")).status == "abstained"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "ZeroDivisionError: division by zero (my_coaches_"),
        ("too_high", "gave 11, which is outside 0 to 10"),
        ("a_little_too_high", "gave 10.0000001, which is outside 0 to 10"),
        ("beyond_floats", "gave inf, which is outside 0 to 10"),
        ("not_a_number", "gave nan, which is outside 0 to 10"),
        ("yes", "gave bool, not a number or a CoachScore"),
        ("nothing", "gave NoneType, not a number or a CoachScore"),
        ("other", "scored action 'another/0', and was asked about 'e1/0'"),
        ("guarded", "LookupError: ask for its value (my_coaches_"),
        ("guarded_inside", "LookupError: ask for its value (my_coaches_"),
        ("earns", "gave a usage that cannot be: cost_usd is -5.0"),
        ("endless", "gave a usage that cannot be: attempts is 1000000"),
        ("torn", "the status 'failed' with the score 5.0: it is 'scored' with a score, and 'abstained' without"),
    ],
)
async def test_what_is_no_score_is_a_failure_and_never_a_number(module: str, name: str, reason: str) -> None:
    score = await score_of(f"{module}:{name}")
    assert (score.status, score.process_0_10) == ("failed", None)
    assert reason in score.rationale


async def test_the_log_has_the_traceback_of_what_a_score_raises_once(
    module: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "coachrl.coach.kinds.own")
    coach = make_coach(CoachConfig(name=f"{module}:broken"))
    for _ in range(2):
        with pytest.raises(
            CoachError, match=rf"ZeroDivisionError: division by zero \({module}\.py, line {line_of('def broken') + 1}\)"
        ):
            await coach.score(REQUEST)
    assert caplog.text.count("return 1 / 0") == 1


async def test_a_coach_that_says_that_it_cannot_be_used_stops_the_run(module: str) -> None:
    with pytest.raises(CoachUnavailable, match="the judge has left"):
        await score_of(f"{module}:gone")
    pool = CoachPool(make_coach(CoachConfig(name=f"{module}:Mine")))
    with pytest.raises(CoachUnavailable, match="no such judge"):
        await pool.check()
    await pool.close()
    assert __import__(module).CLOSED == [True]


async def test_what_its_own_check_and_close_raise_is_one_line(module: str, caplog: pytest.LogCaptureFixture) -> None:
    pool = CoachPool(make_coach(CoachConfig(name=f"{module}:Faulty")))
    with pytest.raises(CoachUnavailable, match=r"Faulty cannot be asked: RuntimeError: the server is down \(.*, line"):
        await pool.check()
    await pool.close()
    place = f"{module}.py, line {line_of('the server is gone')}"
    assert [record.message for record in caplog.records] == [
        f"coach {module}:Faulty could not be closed: RuntimeError: the server is gone ({place})"
    ]
    plain = CoachPool(make_coach(CoachConfig(name=f"{module}:PlainCheck")))
    await plain.check()
    await plain.close()


async def test_a_coach_that_ends_the_program_fails_one_score(module: str) -> None:
    assert "SystemExit: 4" in (await score_of(f"{module}:leaves")).rationale
    with pytest.raises(ConfigError, match="cannot be made without arguments: SystemExit: 3"):
        make_coach(CoachConfig(name=f"{module}:Leaver"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{module}:lenght", "has no 'lenght', did you mean 'length'"),
        ("{module}x:length", "no module '{module}x', did you mean '{module}'"),
        (
            "coachrl.coach.rubrik.rules:RulesCoach",
            "no module 'coachrl.coach.rubrik', did you mean 'coachrl.coach.rubric'",
        ),
        ("{module}:PLENTY", "is no coach: it must be a class with"),
        ("{module}:Empty", "is no coach: it must be a class with"),
        ("{module}:Needy", "cannot be made without arguments: TypeError"),
    ],
)
def test_a_wrong_path_names_what_is_wrong_and_the_nearest(module: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_coach(CoachConfig(name=path.format(module=module)))
    assert message.format(module=module) in str(caught.value)


def test_a_coach_that_is_named_with_a_dot_is_told_the_colon(module: str) -> None:
    pytest.importorskip("litellm", reason="needs the llm extra")
    with pytest.raises(CoachUnavailable, match=f"no coach '{module}.Mine', did you mean '{module}:Mine'"):
        resolve_model(f"{module}.Mine", import_litellm("x"))


def test_a_module_that_cannot_be_imported_says_why(module: str) -> None:
    Path(f"{module}_bad.py").write_text("import there_is_no_such_thing\n")
    with pytest.raises(
        ConfigError, match="cannot be imported: ModuleNotFoundError: No module named 'there_is_no_such_thing'"
    ):
        make_coach(CoachConfig(name=f"{module}_bad:Mine"))
    Path(f"{module}_worse.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="cannot be imported: ZeroDivisionError"):
        make_coach(CoachConfig(name=f"{module}_worse:Mine"))


async def test_it_may_be_a_member_of_an_ensemble(module: str) -> None:
    members = (MemberConfig(name=f"{module}:Mine"), MemberConfig(name=f"{module}:Plain"))
    (score,) = await score_all(CoachPool(make_coach(CoachConfig(ensemble=members))), [REQUEST])
    assert (score.process_0_10, score.disagreement) == (3.5, 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": Path("strict")}, "takes no prompt"),
        ({"api_base": "http://127.0.0.1:1/v1"}, "takes no prompt and no API base"),
        ({"fallbacks": ("gpt-4o",)}, "takes no fallbacks"),
    ],
)
def test_what_only_models_use_is_refused(module: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_coach(CoachConfig.model_validate({"name": f"{module}:Mine", **settings}))


def test_retrospective_credit_needs_a_language_model(module: str) -> None:
    settings = CoachConfig(name=f"{module}:Mine", evidence=EvidenceConfig(ground_truth="none"))
    with pytest.raises(ConfigError, match="is no language model"):
        make_retrospective_coach(settings)
    with pytest.raises(ConfigError, match="'rules' is no language model"):
        make_retrospective_coach(settings.model_copy(update={"retrospective": RetrospectiveConfig(name="rules")}))


@pytest.mark.parametrize("name", ["gpt-4o", "ollama/llama3:8b", "ft:gpt-3.5-turbo", "bedrock/anthropic.claude-v2:1"])
def test_a_models_name_with_a_colon_is_no_import_path(name: str) -> None:
    assert is_language_model(name)


def test_nobody_knows_what_a_coach_of_ones_own_costs() -> None:
    assert known_price(CoachConfig(name="mine:Coach")) is None


@pytest.mark.parametrize("name", ["drawn", "drawn_later"])
def test_a_generator_is_refused_before_the_first_score(module: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}' is a generator: it must `return` its result"):
        make_coach(CoachConfig(name=f"{module}:{name}"))


@pytest.mark.parametrize(("name", "takes"), [("nobody", ""), ("two", "request, more")])
def test_a_function_of_anything_but_the_request_is_refused_before_the_first_score(
    module: str, name: str, takes: str
) -> None:
    with pytest.raises(ConfigError, match=rf"must take \(request\), and takes \({takes}\)"):
        make_coach(CoachConfig(name=f"{module}:{name}"))


@pytest.mark.parametrize(("length", "score"), [(0, 0.0), (10, 10.0), (11, None)])
async def test_a_number_of_0_and_one_of_10_are_scores(module: str, length: int, score: float | None) -> None:
    coach, request = OwnCoach(f"{module}:length"), request_for(make_action("solver", "x" * length))
    await coach.check()  # a function has none
    if score is None:
        with pytest.raises(CoachError, match="gave 11, which is outside 0 to 10"):
            await coach.score(request)
    else:
        assert (await coach.score(request)).process_0_10 == score
    await coach.close()


def test_a_coach_is_known_by_the_code_of_its_file(module: str, tmp_path: Path) -> None:
    first = code_of(f"{module}:length")
    assert first == code_of(f"{module}:Mine") and len(first) == 12
    with (tmp_path / f"{module}.py").open("a") as file:
        file.write("# mended\n")
    assert code_of(f"{module}:length") != first and code_of("builtins:len") == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("half_there", "Out of range float values are not JSON compliant"),
        ("of_bytes", "bytes cannot be written as JSON"),
        ("of_words", "process_0_10 is '8', not a valid number"),
        ("of_another_model", "model is 4, not a valid string"),
    ],
)
async def test_a_score_that_no_file_could_hold_is_a_failure_and_ends_no_run(
    module: str, name: str, reason: str, tmp_path: Path
) -> None:
    pool = CoachPool(OwnCoach(f"{module}:{name}"), concurrency=1, ledger=tmp_path / "ledger.jsonl")
    [score] = await score_all(pool, [REQUEST])
    assert (score.status, score.process_0_10) == ("failed", None)
    assert f"gave a score that cannot be written down: {reason}" in score.rationale  # Python 3.13 names the value, too


async def test_numbers_of_numpy_in_a_score_are_numbers(module: str, tmp_path: Path) -> None:
    pool = CoachPool(OwnCoach(f"{module}:of_numpys_numbers"), concurrency=1, ledger=tmp_path / "ledger.jsonl")
    [score] = await score_all(pool, [REQUEST])
    assert (score.status, score.process_0_10, score.outcome_0_1) == ("scored", 8.5, 1.0)
    assert type(score.process_0_10) is float


@pytest.mark.parametrize("name", ["cancelled", "cancels"])
async def test_a_task_that_a_coach_has_cancelled_fails_one_score(module: str, name: str) -> None:
    """Also the one that it runs in."""
    [score] = await score_all(CoachPool(OwnCoach(f"{module}:{name}"), concurrency=1), [REQUEST])
    assert score.status == "failed" and "CancelledError" in score.rationale


async def test_scoring_that_is_given_up_is_cancelled(module: str) -> None:
    scoring = asyncio.ensure_future(OwnCoach(f"{module}:waits").score(REQUEST))
    await asyncio.sleep(0)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring


@pytest.mark.parametrize(
    ("name", "reason"),
    [("mute", "Mute: (its text cannot be made: ZeroDivisionError)"), ("generator_exit", "GeneratorExit")],
)
async def test_whatever_a_coach_raises_is_one_line(module: str, name: str, reason: str) -> None:
    score = await score_of(f"{module}:{name}")
    assert score.status == "failed" and f"coach {module}:{name}: {reason}" in score.rationale


async def test_a_coach_that_never_answers_is_given_up(module: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = CoachConfig(name=f"{module}:Endless", give_up_after_s=0.01)
    pool = CoachPool(make_coach(settings))
    limit = r"no answer within 0\.01 s \(coach\.give_up_after_s\)"
    with pytest.raises(CoachUnavailable, match=f"^coach {module}:Endless: its check: {limit}$"):
        await pool.check()
    [score] = await score_all(pool, [REQUEST])  # which closes it
    assert score.status == "failed" and f"action {ID}: no answer within 0.01 s" in score.rationale
    assert "could not be closed" in caplog.text and "its close: no answer within 0.01 s" in caplog.text


async def test_a_timeout_of_a_coachs_own_is_not_taken_for_ours(module: str) -> None:
    assert "TimeoutError: of its own" in (await score_of(f"{module}:out_of_time")).rationale


async def test_a_plain_function_that_holds_up_the_run_is_told(module: str) -> None:
    coach = make_coach(CoachConfig(name=f"{module}:blocks", give_up_after_s=0.01))
    warned: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warned.append(record.getMessage())
            __import__(module).WARNED.set()  # else the function waits on, as one that never answers

    log, heard = logging.getLogger("coachrl.coach.kinds.own"), Heard()
    log.addHandler(heard)
    try:
        assert (await coach.score(REQUEST)).process_0_10 == 5
    finally:
        log.removeHandler(heard)
    [words] = warned
    assert f"{module}:blocks: action {ID}: no answer for 0.01 s, and a plain function holds up the whole run" in words
