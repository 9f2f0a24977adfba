"""When an agent's part is over, and which of its turns belong to one."""

from dataclasses import replace

import pytest

from coachrl.pipelines.parts import part_is_done, part_so_far, turn_in_part
from coachrl.testing.actions import make_action
from coachrl.types import Execution, Role, ToolCall

OK, CRASH = Execution("ok"), Execution("error", exit_code=1)


def act(code=None, execution=None, files=(), role="engineer", turn=0, prompt=(1,), reply=(2,)):
    made = {"code": code, "execution": execution, "files_after": files}
    return make_action(role, index=turn, turn=turn, prompt_ids=prompt, response_ids=reply, **made)


ROLE = Role("engineer", "engineer", python=True, max_turns=3, required_files=("a.pkl", "b.pkl"))
BOTH = ("a.pkl", "b.pkl", "notes.txt")


@pytest.mark.parametrize(
    ("stop_when", "action", "done"),
    [
        ("answered", act(), True),
        ("answered", act("x", OK), False),
        ("answered", act("x"), False),
        ("answered", replace(act(), tool_calls=(ToolCall("f", "{}", "5", ok=True),)), False),
        ("ran", act("x", OK), True),
        ("ran", act("x", CRASH), False),
        ("ran", act(), False),
        ("saved", act("x", OK, BOTH), True),
        ("saved", act("x", OK, ("a.pkl",)), False),
        ("saved", act("x", CRASH, BOTH), False),
        ("saved", act("x", Execution("timeout"), BOTH), False),
        ("saved", act(files=BOTH), False),
    ],
)
def test_a_part_ends_by_what_its_role_waits_for(stop_when, action, done):
    role = replace(ROLE, stop_when=stop_when)
    assert part_is_done(role, action, 0) is done
    assert part_is_done(role, action, 1) is done
    assert part_is_done(role, action, 2), "no turn is left"


def test_an_agent_that_takes_a_second_part_begins_to_count_anew():
    first = act("x", CRASH, turn=0, prompt=(1, 2), reply=(3,))
    second = act("x", CRASH, turn=1, prompt=(1, 2, 3, 9), reply=(4,))
    other = act("x", CRASH, role="modeler", turn=0, prompt=(1, 2, 3, 9, 4), reply=(5,))
    anew = act("x", CRASH, turn=2, prompt=(1, 7), reply=(6,))
    on = act("x", CRASH, turn=3, prompt=(1, 7, 6, 9), reply=(8,))
    episode = [first, second, other, anew]
    assert part_so_far(second, [first]) == (first, second)
    assert part_so_far(on, episode) == (anew, on)
    assert [turn_in_part(a, episode[:place]) for place, a in enumerate(episode)] == [0, 1, 0, 0]
    assert turn_in_part(on, episode) == 1
    assert not part_is_done(replace(ROLE, stop_when="ran"), on, turn_in_part(on, episode))


def test_nothing_goes_on_from_a_reply_that_no_policy_wrote():
    one, other = (act(turn=turn, prompt=(), reply=()) for turn in (0, 1))
    assert part_so_far(other, [one]) == (other,) and turn_in_part(other, [one]) == 0
    given_up, again = act(prompt=(1, 2), reply=()), act(turn=1, prompt=(1, 2), reply=(3,))
    assert part_so_far(again, [given_up]) == (again,) and turn_in_part(again, [given_up]) == 0
