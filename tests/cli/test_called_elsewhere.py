"""What users of other tools type first is answered in one line by what to type here."""

import re
import sys

import pytest

from coachrl.cli import main
from coachrl.config.called_elsewhere import COMMANDS, SENTENCES
from coachrl.config.explain import described
from coachrl.config.load import load_config
from coachrl.resources import resource

# A whole line behind `coachrl`, and words of the answer.
TYPED = [
    ("train quickstart", "a configuration is named by --config"),
    ("train my.yaml", "a configuration is named by --config"),
    ("train config=quickstart", "a configuration is named by --config"),
    ("train my_team", "a configuration is named by --config, a team by --pipeline"),
    ("train my_team.py", "--pipeline my_module:MyTeam, and tasks by tasks.source=my_module:load"),
    ("train data.jsonl", "a file of tasks is named by tasks.train"),
    ("train Qwen/Qwen3-1.7B", "a model is named by --model"),
    ("train runs/x", "a run's folder is named by --run, or --resume"),
    ("eval runs/x", "a run's folder is named by --run, or --resume"),
    ("train train.steps 4", "must read key.sub=value, as train.steps=VALUE"),
    ("train train.steps: 4", "must read key.sub=value, as train.steps=VALUE"),
    ("train steps=4", "did you mean 'train.steps'?"),
    ("train coach=rules", "set coach.name to that"),
    ("train pipeline=debate", "set pipeline.name to that"),
    ("train track=wandb", "write it as track=[wandb]"),
    ("train model.path=x", "it is text and no section: write it as model=VALUE"),
    ("train tasks.source=gsm8k", "tasks.source=math tasks.train=FILE_OR_FOLDER"),
    ("train tasks.source=my_tasks.py", "did you mean 'my_tasks:load'?"),
    ("train tasks.source=my_tasks.problems", "did you mean 'my_tasks:problems'?"),
    ("train tasks.source=math tasks.grader=mine.same", "did you mean 'mine:same'?"),
    ("train reward.source=rewards.rand_reward_func", "did you mean 'rewards:rand_reward_func'?"),
    ("train reward.source=rewards.py", "did you mean 'rewards:reward'?"),
    ("train --pipeline my_team.py", "did you mean 'my_team:MyPipeline'?"),
    ("train algorithm.name=my.package.Mine", "did you mean 'my.package:Mine'?"),
    ("train algorithm.name=ppo", "algorithm.name=reinforce_pp has PPO's clipped loss"),
    ("train algorithm.name=DAPO", "it is algorithm.name=grpo with algorithm.without_spread=skip"),
    ("train algorithm.gamma=1", "returns are not discounted"),
    ("train algorithm.lam=1", "no critic is trained"),
    ("train -config quickstart", "no option '-config', did you mean '--config'?"),
    ("train -steps=4", "no option '-steps', did you mean '--steps'?"),
    ("tasks list -config quickstart", "no option '-config', did you mean '--config'?"),
    ("--config quickstart train", "options of a command stand behind it, as in coachrl train --config"),
    ("--seed 4 train", "as in coachrl train --seed"),
    ("tasks list -v", "as in coachrl -v tasks list"),
    ("train -v", "it stands before the command, as in coachrl -v train"),
    ("train --version", "it stands before the command, as in coachrl --version train"),
    ("--debug train", "`coachrl --verbose` before the command"),
    ("doctor --debug", "`coachrl --verbose` before the command"),
    ("train --max-steps 4", "did you mean '--steps'?"),
    ("train --train.steps=4", "did you mean '--steps'?"),
    ("train --train.learning_rate 1e-5", "as a setting it is train.learning_rate=VALUE"),
    ("train --trainer.max_steps 4", "did you mean '--steps'?"),
    ("train --set train.steps=4", "settings stand by themselves, as key.sub=value"),
    ("train --train data.jsonl", "as a setting it is tasks.train=VALUE"),
    ("train --model-name-or-path x", "did you mean '--model'?"),
    ("train --actor.model_name_or_path x", "did you mean '--model'?"),
    ("train --output-dir x", "did you mean '--out'?"),
    ("train --run-name x", "did you mean '--name'?"),
    ("train --judge x", "did you mean '--coach'?"),
    ("train --coach.name x", "did you mean '--coach'?"),
    ("train --coach-base-url x", "did you mean '--coach-api-base'?"),
    ("train --gpus 4", "as a setting it is openrlhf.gpus=VALUE"),
    ("train --cpu", "as a setting it is torch.device=VALUE"),
    ("train --bf16", "torch.precision=bfloat16, which is the default"),
    ("train --wandb", "--track wandb"),
    ("train --overwrite", "--name gives another one"),
    ("train --api-key x", "keys are read from the environment"),
    ("rollout --n 2", "did you mean '-n'?"),
    ("eval -T x=1", "settings stand by themselves"),
    ("rescore runs/x --budget 3", "as a setting it is coach.budget_usd=VALUE"),
    ("eval --temperature 0", "evaluation at eval.temperature"),
    ("train --push_to_hub", "--push NAME/REPO"),
    ("sft --lr 1e-5", "did you mean '--learning-rate'?"),
    ("sft --output-dir x", "did you mean '--out'?"),
    ("sft --model-name-or-path x", "did you mean '--model'?"),
    ("config show train.lr", "did you mean 'train.learning_rate'?"),
    ("config show gamma", "returns are not discounted"),
    ("config list", "no command 'list': there is show"),
    ("label runs/x", "no command 'runs/x': there is export, import"),
    ("run", "did you mean 'coachrl train' or 'runs'?"),
    ("list", "did you mean 'coachrl runs list'?"),
    ("resume runs/x", "did you mean 'coachrl train --resume RUN'?"),
    ("logs", "did you mean 'coachrl view RUN'?"),
    ("chat", "did you mean 'coachrl serve RUN'?"),
    ("version", "did you mean 'coachrl --version'?"),
]
# What no other tool's word may lead to.
UNANSWERED = ["serve --temperature 1", "rescore runs/x --temperature 1", "serve --model x", "report --bf16"]


def answer(line, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["coachrl", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main._run()
    [told] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and told.startswith("error: ")
    return told


@pytest.mark.parametrize(("typed", "said"), TYPED)
def test_what_is_typed_from_habit_is_answered_by_what_to_type_here(typed, said, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert said in answer(typed, monkeypatch, capsys)


@pytest.mark.parametrize("typed", UNANSWERED)
def test_a_command_is_told_of_no_setting_that_it_does_not_take(typed, monkeypatch, capsys):
    assert re.search(r"no option '[^']+' \(", answer(typed, monkeypatch, capsys))


@pytest.mark.parametrize("line", ["train --name c --dry-run", "train --name=n --dry-run", "tasks list -c quickstart"])
def test_a_word_that_only_looks_like_an_option_is_taken(line, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["coachrl", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main._run()
    assert not ended.value.code


def rows():
    """What stands in the tables of the page: a word of another tool, and what is named in its place."""
    for line in re.findall(r"^\| `.*", resource("docs/coming_from.md").read_text(encoding="utf-8"), re.MULTILINE):
        there, here = line.strip("|").split(" | ")
        for word in re.findall(r"`([^`]+)`", there):
            yield word, re.findall(r"`([^`]+)`", here.partition(";")[0])


@pytest.mark.parametrize(("word", "names"), list(rows()))
def test_the_page_for_users_of_other_tools_says_what_the_command_line_answers(word, names, monkeypatch, capsys):
    verb = word.removeprefix("inspect ")
    if verb in main.VERBS:
        return
    line = verb if verb != word else f"eval {word} 1" if word.startswith("-") else f"train {word}=1"
    told = answer(line, monkeypatch, capsys)
    assert any(name in told for name in names) if names else "did you mean" not in told, told


def test_what_the_answers_name_is_there():
    config = load_config(None, ["tasks.source=math", "algorithm.name=reinforce_pp"])
    for sentence in SENTENCES.values():
        for key in re.findall(r"\b[a-z]+\.[a-z_]+\b", re.sub(r"\S+\.(md|jsonl)|key\.sub", "", sentence)):
            assert described(config, key) or key.startswith("pipeline.roles"), key
    for line in COMMANDS.values():
        assert line.startswith("-") or line.split()[0] in {**main.VERBS, **main.GROUPS}
    assert not set(COMMANDS) & {*main.VERBS, *main.GROUPS}
