"""Episodes of tool and planner in planpath, sokoban and sudoku: order inside a turn, variants, code, trees."""

import asyncio

import pytest

from coachrl.config import PipelineConfig, RoleConfig, SandboxConfig
from coachrl.config.tasks import PlanPathTasks
from coachrl.errors import ConfigError, TaskError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.team.roles import with_swapped_policies
from coachrl.pipelines.team.team import Tree
from coachrl.sandbox import make_sandbox
from coachrl.tasks.worlds.planpath import Maze, generate_planpath
from coachrl.tasks.worlds.sudoku import Sudoku
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.rollout.tree import by_environment
from coachrl.types import Task

MAZE = Maze(4, frozenset({(1, 0), (1, 1)}), (0, 0), (2, 0))  # A... / ##.. / G... / ....
CLUES = ((1, 0, 0, 0), (0, 0, 3, 0), (0, 4, 0, 0), (0, 0, 0, 2))
SHORTEST = "[R,R,D,D,L,L]"
TASK = Task("t", "k", "Walk.\n\nmap", ground_truth=MAZE)


def play(pipeline, reply, task=TASK, tree=None, sandbox=None):
    policy = ScriptedPolicy(reply)
    context = RolloutContext(pipeline, policy, sandbox, tree=tree)
    return asyncio.run(rollout([EpisodeSpec("e", task, 1)], context))[0], policy


def pipeline(name="planpath", python=False, **settings):
    roles = {} if settings.get("options", {}).get("only") == "planner" else {"tool": RoleConfig(python=python)}
    return make_pipeline(PipelineConfig(name=name, roles=roles, **settings))


@pytest.mark.parametrize("prompt_style", ["full", "short"])
@pytest.mark.parametrize("name", ["planpath", "sokoban", "sudoku"])
@pytest.mark.parametrize("only", [None, "tool", "planner"])
def test_every_voice_and_variant_loads(name, prompt_style, only):
    made = pipeline(name, prompt_style=prompt_style, options={"only": only} if only else {})
    assert [role.name for role in made.roles] == ([only] if only else ["tool", "planner"])
    assert [role.description for role in made.roles] == [made.descriptions[role.name] for role in made.roles]


def test_who_acts_alone_is_told_of_no_proposal(tmp_path):
    for name in ("planner", "planner.alone", "tool"):
        (tmp_path / f"{name}.md").write_text("---\nfields: [task, proposal]\n---\n{{task}} {{proposal}}")
    for only in ("planner", "tool"):
        with pytest.raises(ConfigError, match="there is no field proposal; its fields may be history, state, task"):
            pipeline(prompts=tmp_path, options={"only": only})


def test_the_planner_reads_what_the_tool_wrote_where_no_code_was_run(tmp_path):
    (tmp_path / "tool.md").write_text("---\nfields: [task]\n---\n{{task}}")
    (tmp_path / "planner.md").write_text(
        "---\nfields: [code, output, proposal, history]\n---\n{{code}}|{{output}}|{{proposal}}|{{history}}"
    )
    replies = iter(["walk", "[]", "", "[U]"])
    _, policy = play(pipeline(prompts=tmp_path, options={"turns": 2}), lambda call: next(replies))
    assert [call.prompt.removeprefix("<user>").removesuffix("\n<assistant>") for call in policy.calls[1::2]] == [
        "walk|(nothing)|none that can be read|Nothing has been done yet.",
        "(nothing)|(nothing)|none that can be read|Turn 1: No move was made. Now 2 steps from the goal, walls aside.",
    ]


def test_the_planner_sees_the_proposal_of_this_turn_and_the_history():
    def reply(call):
        turn = sum(c.policy == "tool" for c in policy_calls)
        if call.policy == "tool":
            return "[R,R]" if turn == 1 else "[D,D,L,L]"
        return "##### [R,R]" if turn == 1 else "##### [D,D,L,L]"

    policy = ScriptedPolicy(lambda call: reply(call))
    policy_calls = policy.calls
    [episode] = asyncio.run(rollout([EpisodeSpec("e", TASK, 1)], RolloutContext(pipeline(), policy, None)))
    assert episode.outcome.success and episode.outcome.metrics["turns"] == 2 and len(episode.actions) == 4
    first, second = policy.calls[1].prompt, policy.calls[3].prompt
    assert "Its proposal, as it is read: [R,R]" in first and "Nothing has been done yet." in first
    assert "Its proposal, as it is read: [D,D,L,L]" in second and "Turn 1: Moves: R R." in second
    assert "..A.\n##..\nG..." in policy.calls[2].prompt
    assert [(a.role, a.turn) for a in episode.actions] == [("tool", 0), ("planner", 0), ("tool", 1), ("planner", 1)]


def test_an_episode_ends_after_its_turns():
    episode, _ = play(pipeline(options={"turns": 3}), lambda call: "[U]")
    assert not episode.outcome.success and len(episode.actions) == 6
    assert episode.outcome.reason == "not solved within 3 turns" and episode.outcome.metrics["distance_left"] == 6.0


@pytest.mark.parametrize("only", ["tool", "planner"])
def test_one_role_alone_moves_the_world(only):
    episode, _ = play(pipeline(options={"only": only}), lambda call: SHORTEST)
    assert episode.outcome.success and [action.role for action in episode.actions] == [only]


def test_a_proposal_is_shown_in_the_form_that_agents_write_and_short():
    long = "[" + ",".join("RL" * 100) + "]"
    _, policy = play(pipeline(), lambda call: long)
    assert f"Its proposal, as it is read: [{','.join('RL' * 30)}] and 140 more" in policy.calls[1].prompt
    task = Task("t", "k", "Fill.\n\ngrid", ground_truth=Sudoku(CLUES))
    _, policy = play(pipeline("sudoku"), lambda call: "##### [[1,2,3],[4,1,4]]", task)
    assert "Its proposal, as it is read: [[1,2,3],[4,1,4]]" in policy.calls[1].prompt


def test_code_prints_the_proposal():
    code = "Here:\n```python\nprint('[R,R,D,D,L,L]')\n```"
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe", timeout_s=30))

    def reply(call):
        return code if call.policy == "tool" else "##### [R]"

    episode, policy = play(pipeline(python=True, options={"turns": 1}), reply, sandbox=sandbox)
    assert episode.actions[0].reward.team == 1.0
    assert "Its proposal, as it is read: [R,R,D,D,L,L]" in policy.calls[1].prompt and "print(" in policy.calls[1].prompt
    asyncio.run(sandbox.close())


def test_under_tree_sampling_the_best_lists_win():
    answers = iter(["[U]", SHORTEST, "[R]", "x"] * 2)
    episode, policy = play(pipeline(), lambda call: next(answers), tree=Tree(4, by_environment(1.0)))
    assert episode.outcome.success and [a.candidate for a in episode.actions] == [1, 1]
    assert len(episode.rejected_candidates) == 6 and "as it is read: [R,R,D,D,L,L]" in policy.calls[4].prompt
    locals_of_planner = [a.reward.local for a in episode.all_actions if a.role == "planner"]
    assert locals_of_planner == pytest.approx([0.1, 1.0, 0.2 + 0.8 / 6, 0.0])


def test_policies_swap_by_name():
    roles = with_swapped_policies(pipeline().roles, "tool,planner")
    assert [(role.name, role.policy) for role in roles] == [("tool", "planner"), ("planner", "tool")]
    for names, reason in [
        ("tool,plan", "did you mean 'planner'"),
        ("tool", "two different"),
        ("tool,tool", "two"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            with_swapped_policies(pipeline().roles, names)
    with pytest.raises(ConfigError, match="no role plays with 'tool'"):
        with_swapped_policies(pipeline(shared_policy="one").roles, "tool,planner")


def test_a_task_of_another_world_is_refused():
    [task] = generate_planpath(PlanPathTasks(train_count=1, size=4), 0, "train")
    with pytest.raises(TaskError, match=r"pipeline sokoban takes a Level, as those of tasks\.source=sokoban are"):
        play(pipeline("sokoban"), lambda call: "[]", task=task)
    with pytest.raises(ConfigError, match="no option 'turn'"):
        pipeline(options={"turn": 3})
