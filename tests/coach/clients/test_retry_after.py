"""How long a provider asks to wait: seconds, or a date by its own clock."""

import time
from email.utils import formatdate

import pytest
from chat_clients import EIGHT, GEMINI, scored
from scripted_server import Step, say, status

from coachrl.coach.clients.base import seconds_of_retry_after

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("1", 1.0), (" 1.5 ", 1.5), ("-3", 0.0), ("86400", 86400.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)]
    + [(odd, None) for odd in ("", "soon", "1s", "nan", "inf", "1e9", "9" * 400, "Wed, 99 Oct 2015 07:28:00 GMT")]
    + [(odd, None) for odd in ("Wed, 21 Oct 2099 07:28:00 GMT", "Wed, 21 Oct 2099 07:28:00")]
    + [(f"Wed, 21 Oct {'9' * 20} 07:28:00 GMT", None), (f"Wed, 21 Oct 2015 07:28:00 +{'9' * 20}", None)],
)
def test_a_retry_after_is_seconds_or_a_date_of_a_day_at_most(value: str, seconds: float | None) -> None:
    assert seconds_of_retry_after(value) == seconds


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        ("Wed, 21 Oct 2099 07:27:55 GMT", 5.0),
        ("Wed, 21 Oct 2099 07:28:05 GMT", 0.0),
        ("Tue, 20 Oct 2099 07:27:59 GMT", None),
    ]
    + [(odd, None) for odd in ("", "soon", "Wed, 21 Oct 2099 07:27:55")],  # then it is 73 years from now
)
def test_a_date_to_wait_for_is_of_the_clock_that_dates_the_answer(sent: str, seconds: float | None) -> None:
    assert seconds_of_retry_after("Wed, 21 Oct 2099 07:28:00 GMT", sent) == seconds


@pytest.mark.parametrize("model", ["openai/judge", "openai/gpt-4o", GEMINI])
async def test_a_clock_that_is_two_hours_ahead_of_ours_loses_no_call(model: str) -> None:
    there = formatdate(time.time() + 7200, usegmt=True)
    busy = Step(http_status=429, headers={"Date": there, "Retry-After": there})
    assert (await scored(model, [busy, say(EIGHT)])).process_0_10 == 8


async def test_a_wait_of_years_that_a_server_asks_for_by_mistake_loses_no_call() -> None:
    script = [status(429, retry_after_s=10**9), say(EIGHT)]
    assert (await scored("openai/judge", script)).process_0_10 == 8
