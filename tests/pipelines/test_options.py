"""A pipeline's own parameters, and roles that a team has several of."""

import re
import shlex
import sys
import types
from pathlib import Path

import pytest
from pydantic import Field

from coachrl.config import PipelineConfig, RoleConfig, dump_config, find_config, load_config
from coachrl.errors import ConfigError, TaskError
from coachrl.pipelines import SHIPPED, find_pipeline, make_pipeline
from coachrl.pipelines.base import Pipeline, PipelineOptions
from coachrl.pipelines.team.roles import OBSERVED, load_team
from coachrl.prompts import NO_PROMPT, parse_prompt
from coachrl.types import Outcome, Role, Task

DOCS = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^coachrl (?:train|eval) .*", DOCS, re.MULTILINE)


class Weights(PipelineOptions):
    tests: float = Field(1.0, ge=0)


PROMPT = parse_prompt("---\nfields: []\n---\nSay something.", "say")


class Rounds(Pipeline):
    name = "rounds"
    roles = (Role("only", policy="only", prompt=PROMPT),)

    class Options(PipelineOptions):
        rounds: int = Field(2, ge=1)
        weights: Weights = Weights()

    async def run(self, task, team, workspace):
        return Outcome(True)


MINE = "class Mine(Acting):\n    name = 'mine'\n    "


@pytest.fixture
def own_module(monkeypatch):
    module = types.ModuleType("own_rounds")
    module.Rounds = Rounds
    monkeypatch.setitem(sys.modules, "own_rounds", module)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("def (", "Mine", "cannot be imported: SyntaxError"),
        ("1 / 0", "Mine", "cannot be imported: ZeroDivisionError: division by zero (own_pipeline.py, line 7)"),
        ("Mine = 3", "Mine", "is no pipeline: it must be a subclass of coachrl.pipelines.base.Pipeline"),
        (
            "class Mine:\n    async def run(self, *_): ...",
            "Mine",
            "must be a subclass of coachrl.pipelines.base.Pipeline",
        ),
        ("", "", "has no ''"),
        (
            "class Mine(Pipeline):\n    name = 'mine'",
            "Mine",
            "does nothing yet: define `async def run(self, task, team",
        ),
        ("class Mine(Acting): ...", "Mine", "has no name: set `name` on the class"),
        ("class Mine(Acting):\n    name = 'mine'", "Mine", "pipeline mine has no roles"),
        ("class Mine(Acting):\n    name = 'mine'\n    Options = dict", "Mine", "must be a subclass of PipelineOptions"),
        (
            "class Mine(Acting):\n    name = 'mine'\n    environment = dict",
            "Mine",
            "its environment must be a subclass of Environment",
        ),
        (
            "class Mine(Acting):\n    name = 'mine'\n    def __init__(self, settings): self.roles = (Role('a', 'a'),)",
            "Mine",
            "pipeline mine sets its roles by itself",
        ),
        (
            "class Mine(Acting):\n    name = 'mine'\n    def __init__(self, settings):\n"
            "        super().__init__(settings)\n        self.roles = (Role('a', 'a'),)",
            "Mine",
            "declare `roles` on the class or define `members`, and call super().__init__(settings)",
        ),
        (
            "class Mine(Acting):\n    name = 'mine'\n    roles = (Role('a', 'a'),)",
            "Mine",
            "pipeline mine has roles without a prompt: give each its Role(prompt=...)",
        ),
        (
            "class Mine(Acting):\n    name = 'mine'\n    roles = (Role('reward', 'a', prompt=PROMPT),)",
            "Mine",
            "no role can be called 'reward'",
        ),
        (MINE + "Options = {'a': 1}", "Mine", "its Options must be a subclass of PipelineOptions"),
        (MINE + "environment = 'maze'", "Mine", "its environment must be a subclass of Environment"),
        (MINE + "name = 5", "Mine", "its name must be a plain name (it is 5)"),
        (MINE + "name = '../x'", "Mine", "its name must be a plain name (it is '../x')"),
        (MINE + "name = 'n' * 256", "Mine", "its name must be a plain name (it is 'nn"),
        (MINE + r"name = 'x\n'", "Mine", r"its name must be a plain name (it is 'x\n')"),
        (MINE + "ground_truth = 'str'", "Mine", "its ground_truth must be one class"),
        (MINE + "ground_truth = (str, int)", "Mine", "its ground_truth must be one class"),
        (MINE + "small_model = {'max_new_tokens': 32}", "Mine", "its small_model must be a PipelineConfig"),
        (MINE + "task_sources = 'math'", "Mine", "its task_sources must be a tuple of names"),
        (MINE + "task_sources = ('maths',)", "Mine", "name no task set 'maths', did you mean 'math'?"),
        (MINE + "def run(self, task, team, workspace): ...", "Mine", "its run must be `async def run(self, task"),
        (MINE + "async def run(self, task, team, workspace): yield", "Mine", "and not `yield`"),
        (MINE + "async def run(self): ...", "Mine", "its run must take (self, task, team, workspace)"),
        (MINE + "def __init__(self): ...", "Mine", "pipeline 'own_pipeline:Mine' cannot be made: TypeError"),
        (MINE + "def __init__(self, settings): 1 / 0", "Mine", "cannot be made: ZeroDivisionError: division by zero ("),
        (MINE + "roles = ('first', 'second')", "Mine", "pipeline mine: 'first' is no role: `roles` is a tuple of Role"),
        (MINE + "roles = Role('a', 'a', prompt=PROMPT)", "Mine", "write `roles = (Role(…),)`, with a comma"),
        (
            MINE + "def members(self): return [Role('a', 'a', prompt=PROMPT)]",
            "Mine",
            "`members()` gives pairs of a Role",
        ),
        (MINE + "roles = (Role('a', 'a', prompt=PROMPT),) * 2", "Mine", "pipeline mine has two roles called 'a'"),
        (
            MINE + "roles = (Role('a', 'a', prompt=PROMPT), Role('b', 'a', prompt=PROMPT, external='gpt-4o'))",
            "Mine",
            "role b: external is for roles of the pipeline gateway alone",
        ),
        (MINE + "task_source = ('math',)", "Mine", "nothing reads its task_source, did you mean 'task_sources'?"),
        (MINE + "need_workspace = True", "Mine", "nothing reads its need_workspace, did you mean 'needs_workspace'?"),
        (MINE + "roles = (Role('a', 'a', prompt='Say'),)", "Mine", "role 'a': its prompt must be a Prompt"),
        (MINE + "roles = (Role('a', 'b/c', prompt=PROMPT),)", "Mine", "its policy must be a plain name (it is 'b/c')"),
        (MINE + "roles = (Role('a', 'b' * 256, prompt=PROMPT),)", "Mine", "its policy must be a plain name (it is 'bb"),
        (
            MINE + r"roles = (Role('\ud800', 'a', prompt=PROMPT),)",
            "Mine",
            r"name must be a plain name (it is '\ud800')",
        ),
        (MINE + r"roles = (Role('a\n', 'a', prompt=PROMPT),)", "Mine", r"its name must be a plain name (it is 'a\n')"),
        (MINE + "roles = (Role('a', 'a', prompt=PROMPT, max_turns=0),)", "Mine", "its max_turns must be 1 or more"),
        (MINE + "roles = (Role('a', 'a', prompt=PROMPT, tools='m:f'),)", "Mine", "tools are a tuple of import paths"),
        (MINE + "roles = (Role('a', 'a', prompt=PROMPT, tools=(len,)),)", "Mine", "tools are a tuple of import paths"),
        (
            MINE + "roles = (Role('a', 'a', prompt=PROMPT, python=1),)",
            "Mine",
            "role 'a': python is 1, not a valid bool",
        ),
        (
            MINE + "roles = (Role('a', 'a', prompt=PROMPT, description=None),)",
            "Mine",
            "description is None, not a valid",
        ),
        (MINE + "roles = (Role('a', 'a', prompt=PROMPT, needed_files=len),)", "Mine", "role 'a': 'builtin_function_or"),
    ],
)
def test_what_is_no_pipeline_is_refused_with_the_reason(tmp_path, monkeypatch, text, name, words):
    opening = (
        "from coachrl.pipelines.base import Pipeline\nfrom coachrl.prompts import NO_PROMPT, parse_prompt\n"
        "from coachrl.types import Role\n"
        "PROMPT = parse_prompt('---\\nfields: []\\n---\\nSay.', 'say')\n"
        "class Acting(Pipeline):\n    async def run(self, *_): ...\n"
    )
    (tmp_path / "own_pipeline.py").write_text(opening + text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_pipeline", raising=False)
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_pipeline(PipelineConfig(name=f"own_pipeline:{name}"))


def test_a_method_of_ones_own_may_be_called_nearly_as_what_a_pipeline_declares(own_module, monkeypatch):
    monkeypatch.setattr(Rounds, "joint_reward", lambda self: 1.0, raising=False)
    assert make_pipeline(PipelineConfig(name="own_rounds:Rounds")).joint_reward() == 1.0


def own(**options):
    return PipelineConfig(name="own_rounds:Rounds", options=options)


def test_options_reach_the_pipeline(own_module):
    assert make_pipeline(own()).options.rounds == 2
    made = make_pipeline(own(rounds=5, weights={"tests": 0.5}))
    assert made.options.rounds == 5 and made.options.weights.tests == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"round": 3}, "rounds has no option 'round', did you mean 'rounds'.*options: rounds, weights"),
        ({"rounds": 0}, "rounds: Input should be greater than or equal to 1 .got 0"),
        ({"weights": {"test": 1}}, r"no option 'weights\.test', did you mean 'tests'"),
    ],
)
def test_wrong_options_are_refused(own_module, options, words):
    with pytest.raises(ConfigError, match=words):
        make_pipeline(own(**options))


@pytest.mark.parametrize(
    "settings",
    [
        {"roles": {"only": RoleConfig(policy="../../escaped")}},
        {"roles": {"only": RoleConfig(policy="")}},
        {"shared_policy": "a/b"},
    ],
)
def test_a_policy_that_no_folder_of_a_checkpoint_can_be_called_is_refused(own_module, settings):
    with pytest.raises(ConfigError, match="pipeline rounds, role only: its policy must be a plain name"):
        make_pipeline(PipelineConfig(name="own_rounds:Rounds", **settings))


def test_an_option_that_must_be_given_is_named_with_its_meaning():
    with pytest.raises(ConfigError) as caught:
        make_pipeline(PipelineConfig(name="gateway"))
    assert str(caught.value) == (
        "pipeline.options: gateway needs the option 'grade' (The grader: a function (task, result) -> Outcome, bool or "
        "number); gateway needs the option 'roles' (Who acts, by the names that the app calls)"
    )


def test_settings_reach_the_roles_of_ones_own_pipeline(own_module):
    made = make_pipeline(
        PipelineConfig(
            name="own_rounds:Rounds",
            max_new_tokens=64,
            thinking=True,
            shared_policy="all",
            roles={"only": RoleConfig(max_new_tokens=7)},
        )
    )
    [role] = made.roles
    assert (role.max_new_tokens, role.thinking, role.policy) == (7, True, "all")
    assert make_pipeline(PipelineConfig(name="own_rounds:Rounds", max_new_tokens=64)).roles[0].max_new_tokens == 64


def test_what_the_code_says_of_a_role_is_nearer_than_a_setting_for_all():
    team = [(Role("only", policy="only", prompt=PROMPT, max_new_tokens=9), 1)]
    assert load_team(team, PipelineConfig(max_new_tokens=64), "talk")[0].max_new_tokens == 9
    named = PipelineConfig(roles={"only": RoleConfig(max_new_tokens=5)})
    assert load_team(team, named, "talk")[0].max_new_tokens == 5


@pytest.mark.parametrize(("own", "run", "both"), [(True, False, True), (False, True, True), (False, False, False)])
def test_a_role_thinks_where_its_code_or_the_run_says_so(own, run, both):
    [role] = load_team([(Role("a", "a", PROMPT, thinking=own), 1)], PipelineConfig(thinking=run), "own")
    assert role.thinking is both


def test_a_kind_of_which_there_is_none_has_no_role_and_of_several_each_has_a_number():
    kinds = [(Role(name, name, PROMPT), count) for name, count in (("a", 0), ("b", 1), ("c", 2))]
    team = load_team(kinds, PipelineConfig(), "own")
    assert [(role.name, role.policy) for role in team] == [("b", "b"), ("c_1", "c"), ("c_2", "c")]


BRIEF = parse_prompt("---\nfields: [brief]\n---\n{{brief}}", "own")
TOLD = (("a", BRIEF), ("b", NO_PROMPT))


def now() -> str:
    """The time."""
    return "noon"


def test_what_a_role_says_between_its_turns_stays_and_tools_alone_get_a_word_of_their_own(tmp_path):
    tools = (f"{__name__}:now",)
    with_tools = [Role(name, name, PROMPT, feedback=said, max_turns=2, tools=tools) for name, said in TOLD]
    kept, given = load_team([(role, 1) for role in with_tools], PipelineConfig(), "own")
    assert (kept.feedback, given.feedback) == (BRIEF, OBSERVED)
    [coder] = load_team([(Role("d", "d", PROMPT, max_turns=2, python=True), 1)], PipelineConfig(), "own")
    assert coder.feedback is OBSERVED
    (tmp_path / "c.md").write_text("---\nfields: []\n---\nSay something.")
    with pytest.raises(ConfigError, match=r"needs a feedback\.md beside its prompts"):
        load_team([(Role("c", "c", max_turns=2, python=True), 1)], PipelineConfig(prompts=tmp_path), "own")
    [filed] = load_team([(Role("c", "c", feedback=BRIEF, max_turns=2), 1)], PipelineConfig(prompts=tmp_path), "own")
    assert filed.feedback is BRIEF
    (tmp_path / "feedback.md").write_text("---\nfields: []\n---\nOnce more.")
    [filed] = load_team([(Role("c", "c", feedback=BRIEF, max_turns=2), 1)], PipelineConfig(prompts=tmp_path), "own")
    assert filed.feedback.render() == "Once more."


def test_settings_that_reach_nobody_in_ones_own_pipeline_are_refused(own_module, tmp_path):
    def make(**settings):
        return make_pipeline(PipelineConfig(name="own_rounds:Rounds", **settings))

    with pytest.raises(
        ConfigError, match=r"pipeline\.roles: rounds has no role 'onyl', did you mean 'only'.*roles: only"
    ):
        make(roles={"onyl": RoleConfig(max_new_tokens=7)})
    with pytest.raises(ConfigError, match=r"pipeline\.prompts: the prompts of rounds stand in its code"):
        make(prompts=tmp_path)
    with pytest.raises(ConfigError, match=r"pipeline\.partial_information: the prompts of rounds stand in its code"):
        make(partial_information=True)
    with pytest.raises(ConfigError, match=r"pipeline\.prompt_style: the prompts of rounds stand in its code"):
        make(prompt_style="shrt")
    make(prompt_style="short")
    with pytest.raises(ConfigError, match="role only has 2 turns, but there is no feedback"):
        make(roles={"only": RoleConfig(max_turns=2)})


def test_a_task_with_another_ground_truth_is_refused():
    pipeline = Rounds(PipelineConfig())
    assert pipeline.truth(Task("t", "k", "p", ground_truth=7), int) == 7
    with pytest.raises(TaskError, match=r"task t: .* takes a int: give a int to each"):
        pipeline.truth(Task("t", "k", "p", ground_truth="seven"), int)


def test_a_pipeline_without_options_takes_none():
    with pytest.raises(ConfigError, match="mathchat has no option 'rounds'; it takes no options"):
        make_pipeline(PipelineConfig(name="mathchat", options={"rounds": 2}))


def test_options_from_the_command_line_survive_the_run_folder(tmp_path):
    config = load_config(None, ["pipeline.options.rounds=3", "pipeline.options.weights.tests=0.5"])
    path = tmp_path / "c.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config and config.pipeline.options == {"rounds": 3, "weights": {"tests": 0.5}}


KINDS = [(Role("speaker", policy="speaker"), 2), (Role("chair", policy="chair"), 1)]


@pytest.fixture
def prompts(tmp_path):
    for name in ("speaker", "chair"):
        (tmp_path / f"{name}.md").write_text(f"---\nfields: []\n---\nYou are a {name}.\n")
    return tmp_path


def test_roles_of_a_kind_share_prompt_and_policy(prompts):
    roles = load_team(KINDS, PipelineConfig(prompts=prompts), "talk")
    assert [(role.name, role.policy) for role in roles] == [
        ("speaker_1", "speaker"),
        ("speaker_2", "speaker"),
        ("chair", "chair"),
    ]
    assert roles[0].prompt == roles[1].prompt != roles[2].prompt


def test_settings_of_a_kind_and_of_one_role(prompts):
    settings = PipelineConfig(
        prompts=prompts,
        shared_policy="all",
        roles={"speaker": RoleConfig(max_new_tokens=9), "speaker_2": RoleConfig(policy="second", max_new_tokens=7)},
    )
    roles = load_team(KINDS, settings, "talk")
    assert [role.max_new_tokens for role in roles] == [9, 7, 4096]
    assert [role.policy for role in roles] == ["all", "second", "all"]
    with pytest.raises(
        ConfigError, match=r"no role 'speaker_3', did you mean 'speaker_.'.*roles: speaker_1, speaker_2, chair"
    ):
        load_team(KINDS, settings.model_copy(update={"roles": {"speaker_3": RoleConfig()}}), "talk")


@pytest.mark.parametrize("name", SHIPPED)
def test_the_page_names_every_pipeline_with_its_options(name):
    [row] = [line for line in DOCS.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]
    options = find_pipeline(name).Options.model_fields
    assert all(re.search(rf"`{option}(\.\*)?`", row.split("|")[4]) for option in options), options


@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_commands_are_understood(command):
    words = shlex.split(command, comments=True)[2:]
    flags = {word: words[place + 1] for place, word in enumerate(words[:-1]) if word in ("-c", "--pipeline")}
    path = find_config(flags["-c"]) if "-c" in flags else None
    name = {"pipeline.name": flags["--pipeline"]} if "--pipeline" in flags else {}
    config = load_config(path, [word for word in words if "=" in word], name)
    assert make_pipeline(config.pipeline).roles
