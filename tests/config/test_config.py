"""The configuration: precedence, errors that teach, and a YAML round trip."""

import os
from pathlib import Path

import pytest

from coachrl.coach.prompt_rendering import find_prompt_file
from coachrl.config import (
    RunConfig,
    dump_config,
    find_config,
    kept_config,
    load_config,
    sources_of,
    with_absolute_paths,
)
from coachrl.config.called_elsewhere import SENTENCES, SETTINGS
from coachrl.config.explain import described
from coachrl.errors import ConfigError
from coachrl.resources import resource
from coachrl.text import brief


def test_flags_and_overrides_beat_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("train: {steps: 7, tasks_per_step: 5}\nseed: 3\n")
    config = load_config(path, ["train.steps=9"], {"seed": 4})
    assert (config.train.steps, config.train.tasks_per_step, config.seed) == (9, 5, 4)


def test_a_section_that_is_given_whole_is_laid_over_what_stands_there(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("coach: {name: gemini-2.5-flash, max_tokens: 300}\npolicies: {a: {trainable: false}}\n")
    config = load_config(path, ["coach={temperature: 0.5, evidence: {files: false}}", "policies={}"])
    assert (config.coach.name, config.coach.max_tokens, config.coach.temperature) == ("gemini-2.5-flash", 300, 0.5)
    assert not config.coach.evidence.files and config.coach.evidence.tool_log
    assert config.policies == {}
    assert load_config(path, ["coach={}"]).coach.name == "rules"
    assert load_config(path, ["coach={name: gpt-4o}"]).coach.max_tokens == RunConfig().coach.max_tokens
    assert load_config(path, ["coach={name: gemini-2.5-flash}"]).coach.max_tokens == 300
    sources = sources_of(path, ["coach={temperature: 0.5}"])
    assert (sources["coach.temperature"], sources["coach.max_tokens"]) == ("command line", "c.yaml")


def test_a_flag_is_not_lost_to_an_override_of_its_section():
    flags = {"coach.name": "gemini-2.5-pro", "coach.fallbacks": []}
    config = load_config(None, ["coach={max_tokens: 300, fallbacks: [gpt-4o]}", "coach.name=gemini-2.5-pro"], flags)
    assert (config.coach.name, config.coach.max_tokens, config.coach.fallbacks) == ("gemini-2.5-pro", 300, ("gpt-4o",))
    for override in ("coach={name: rules}", "coach.name=rules", "coach={}", "coach=rules"):
        with pytest.raises(ConfigError, match=r"coach\.name is given twice, by an option and by an override"):
            load_config(None, [override], flags)


def test_a_resolved_config_loads_back_to_the_same_run(tmp_path):
    config = load_config(
        None, ["pipeline.roles.verifier.max_turns=2", "tasks.levels=[1,2]", "coach.name=gemini-2.5-pro"]
    )
    path = tmp_path / "c.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trian.steps=3", ["trian", "did you mean 'train'"]),
        ("train.stepz=3", ["train.stepz", "did you mean 'steps'"]),
        ("sampling.seed=3", ["sampling.seed", "did you mean 'seed'?"]),
        ("pipeline.backend=vllm", ["pipeline.backend", "did you mean 'backend'?"]),
        ("lora_r=8", ["did you mean 'torch.lora_rank'?"]),
        ("train.kl_coef=0.1", ["did you mean 'algorithm.kl_beta'?"]),
        ("num_train_epochs=3", ["did you mean 'train.steps'?"]),
        ("train.lora_rank=8", ["train.lora_rank", "did you mean 'torch.lora_rank'?"]),
        ("train.gradient_checkpointing=true", ["did you mean 'torch.gradient_checkpointing' or 'openrlhf.gradient"]),
        ("pipeline.roles.verifier.max_turn=3", ["pipeline.roles.verifier.max_turn", "did you mean 'max_turns'"]),
        ("train.steps=0", ["train.steps", "greater than or equal to 1"]),
        ("train.steps=many", ["train.steps", "many"]),
        ("algorithm.name=grpo", ["group_size"]),
        ("train.steps.deeper=1", ["train.steps"]),
        ("nonsense", ["key.sub=value"]),
        ("train=5", ["train: it is a section of keys (steps, tasks_per_step", "not 5"]),
        ("coach.ensemble=[rules]", ["coach.ensemble.0: it is a section of keys (name, prompt, api_base), not 'rules'"]),
        ("tasks=5", ["tasks: it is a section of keys (train_count, heldout_count, source, levels", "not 5"]),
        ("tasks.levelz=[1]", ["tasks.levelz", "did you mean 'levels'"]),
        ("tasks.train=a.json", ["tasks.source=word-problems reads no tasks.train", "only math, dsbench and code do"]),
        ("tasks.source=3", ["tasks.source: it must be one of word-problems, math", "(got 3)"]),
        ("tasks.source=./mine.jsonl", ["problems of your own are tasks.source=math tasks.train=FILE_OR_FOLDER"]),
        ("tasks.path=mine.jsonl", ["unknown key 'tasks.path', did you mean 'tasks.train'?"]),
        ("x" * 5000 + "=1", ["unknown key 'xxx", "…"]),
        ("tasks.source=dsbench-lit", ["tasks.source", "did you mean 'dsbench-lite'?"]),
        ("train.learning_rate=.inf", ["train.learning_rate", "finite"]),
        *(
            (f"{key}={10**14}", [key, "less than or equal to 1000000 (got 100000000000000)"])
            for key in ("train.tasks_per_step", "train.group_size", "train.ppo_epochs", "eval.samples_per_task")
        ),
        ("train.clip_range=1e300", ["train.clip_range", "less than or equal to 1000000", "(got '1e300')"]),
        ("torch.threads=99999999999999", ["torch.threads", "less than or equal to 4096"]),
        ("sandbox.timeout_s=1e300", ["sandbox.timeout_s", "less than or equal to 1000000000"]),
        ("pipeline.roles.verifier.tool_timeout_s=1e300", ["tool_timeout_s", "less than or equal to 1000000000"]),
        ("coach.tools={turns: 1, seconds: 1e300}", ["coach.tools.seconds", "less than or equal to 1000000000"]),
        *(
            (f"sandbox.{key}={10**14}", [f"sandbox.{key}", "less than or equal to 1099511627776 (got 100000000000000)"])
            for key in ("memory_mb", "disk_mb", "max_files")
        ),
        ("sampling.temperature=.nan", ["sampling.temperature", "finite"]),
        ("coach.cache=3", ["coach.cache: Input is not a valid path"]),
        *(
            (f"{key}={value}", [f"{key}: it must be a number", "neither true nor false"])
            for key, value in (
                ("train.steps", "true"),
                ("train.learning_rate", "yes"),
                ("coach.budget_usd", "off"),
                ("tasks.levels", "[1, true]"),
            )
        ),
        ("seed=010", ["the value: 010 is 8 in YAML, which counts it in base 8", "without zeros before it"]),
        ("train={steps: -0_10}", ["-0_10 is -8 in YAML"]),
        ("train.steps=1:30", ["1:30 is 90 in YAML, which counts it in base 60", "without colons, and text in quotes"]),
        ("train.learning_rate=1:30.5", ["1:30.5 is 90.5 in YAML"]),
        ("seed=[", ["not YAML"]),
        (
            "coach={name:rules}",
            ["override 'coach={name:rules}'", "a space is missing behind the first colon of name:rules"],
        ),
        ("algorithm={name:my_mod:Mine, gain: 2}", ["a space is missing behind the first colon of name:my_mod:Mine"]),
    ],
)
def test_a_wrong_override_says_what_would_be_right(override, words):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_a_name_of_another_trainer_is_answered_by_the_one_here():
    config = load_config(None, ["tasks.source=math", "tasks.train=mine.jsonl", "tasks.heldout=others.jsonl"])
    assert all(described(config, ours) for ours in SETTINGS.values()) and not set(SETTINGS) & set(SENTENCES)
    answers = {theirs: f", did you mean '{ours}'?" for theirs, ours in SETTINGS.items()}
    answers |= {theirs: f": {sentence}" for theirs, sentence in SENTENCES.items()}
    for theirs, answer in answers.items():
        for place in ("", "train.", "trainer.optim."):
            key = f"{place}{theirs}"
            if key.partition(".")[0] in RunConfig.model_fields and described(config, key.partition(".")[0]):
                continue  # a text, of which another test asks
            with pytest.raises(ConfigError) as caught:
                load_config(None, [f"{key}=1"])
            assert str(caught.value) == f"unknown key '{key}'{answer}"
    for place in ("coach.max_completion_length", "eval.batch_size", "coach.tools.max_steps", "sampling.epsilon"):
        with pytest.raises(ConfigError) as caught:
            load_config(None, [f"{place}=1"])
        assert not any(f"did you mean '{ours}'" in str(caught.value) for ours in SETTINGS.values())
    with pytest.raises(ConfigError, match=r"'eval\.eval_steps', did you mean 'eval\.every'"):
        load_config(None, ["eval.eval_steps=1"])


def test_a_file_of_another_trainer_is_answered_key_by_key(tmp_path):
    path = tmp_path / "verl.yaml"
    path.write_text(
        "data: {train_files: a.parquet, train_batch_size: 8, shuffle: true}\n"
        "actor_rollout_ref:\n  model: {path: Qwen/Qwen3-1.7B}\n  actor: {optim: {lr: 1e-6}, ppo_mini_batch_size: 4}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == (
        f"{path}: unknown key 'data.train_files', did you mean 'tasks.train'?; "
        "unknown key 'data.train_batch_size', did you mean 'train.tasks_per_step'?; "
        "unknown key 'actor_rollout_ref.model.path', did you mean 'model'?; "
        "unknown key 'actor_rollout_ref.actor.optim.lr', did you mean 'train.learning_rate'?; "
        "unknown key 'actor_rollout_ref.actor.ppo_mini_batch_size', did you mean 'train.ppo_mini_batch_size'?"
    )


def test_a_run_in_the_place_of_an_override_is_told_where_it_goes(tmp_path):
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ConfigError, match="a run's folder is named by --run, or --resume"):
        load_config(None, [str(tmp_path)])
    for name in ("quickstart", "mine.yaml"):
        with pytest.raises(
            ConfigError, match=f"'{name}' must read key.sub=value; a configuration is named by --config"
        ):
            load_config(None, [name])
    with pytest.raises(ConfigError, match=r"must read key\.sub=value$"):
        load_config(None, ["\0" + "x" * 5000])


def test_numbers_and_words_that_are_what_they_look_like_are_read():
    config = load_config(None, ["seed=007", "train.steps=1_000", "name='010'"])
    assert (config.seed, config.train.steps, config.name) == (7, 1000, "010")


@pytest.mark.parametrize(
    ("override", "blames_the_file"),
    [("coach.budget_usd=0", False), ("seed=4", True), ("train.tasks_per_step=3", True)],
)
def test_a_file_is_blamed_for_its_own_keys_only(tmp_path, override, blames_the_file):
    path = tmp_path / "c.yaml"
    path.write_text("train: {steps: 0}\n" if blames_the_file else "train: {steps: 1}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["model=tiny-random", override])
    assert str(caught.value).startswith(f"{path}: train.steps" if blames_the_file else "coach.budget_usd: Input")


def test_what_stands_in_no_file_is_blamed_on_none():
    with pytest.raises(ConfigError, match=r"^unknown key 'trian'"):
        load_config({"trian": {"steps": 3}})


def test_a_value_has_no_keys_of_its_own():
    with pytest.raises(ConfigError, match=r"^override 'train\.steps\.most': 'steps' is a value, not a section$"):
        load_config({"train": {"steps": 3}}, ["train.steps.most=1"])


@pytest.mark.parametrize(
    "setting", ["coach.api_base=http://me:secret@host/v1", "pipeline.options={near: [{at: 'http://me:secret@host'}]}"]
)
def test_no_setting_holds_a_password_and_none_is_repeated(setting):
    with pytest.raises(ConfigError, match="leave user, password and keys out of the URL") as caught:
        load_config(None, [setting])
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^coach\.name: a setting cannot hold a NUL character$"):
        load_config({"coach": {"name": "a\0b"}})


@pytest.mark.parametrize("text", ["train: {steps: 3}\ntrain: {tasks_per_step: 2}\n", "coach:\n  name: a\n  name: b\n"])
def test_a_key_that_stands_twice_is_refused(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml, line [23]: not YAML: the key '(train|name)' stands twice"):
        load_config(path)


def test_a_folder_is_no_config_file(tmp_path):
    with pytest.raises(ConfigError, match="it is a folder; name a YAML file in it"):
        find_config(str(tmp_path))


def test_what_is_there_and_is_no_file_is_not_said_to_be_missing(tmp_path):
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    (tmp_path / "round.yaml").symlink_to("round.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("gone", "round", "pipe"):
        with pytest.raises(
            ConfigError, match=rf"config file .*/{name}\.yaml: it is no file, or a link that leads to none"
        ):
            find_config(str(tmp_path / f"{name}.yaml"))


def test_a_path_may_begin_at_home_which_no_file_and_not_every_shell_makes_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "c.yaml"
    path.write_text("out: ~/runs\ntasks: {source: math, train: ~/train.json, heldout: openai/gsm8k}\n")
    config = load_config(path, ["coach.prompt=~/strict.md", "pipeline.prompts=~no-such-user/prompts"])
    assert (config.out, config.coach.prompt) == (tmp_path / "runs", tmp_path / "strict.md")
    assert (config.tasks.train, config.tasks.heldout) == (str(tmp_path / "train.json"), "openai/gsm8k")
    assert config.pipeline.prompts == Path("~no-such-user/prompts")
    assert find_config("~/c.yaml") == path
    (tmp_path / "model").mkdir()
    kept = kept_config(load_config(path, ["model=~/model", "policies.a.model=~no-such-user/m"]))
    assert (kept.model, kept.policies["a"].model) == (str(tmp_path / "model"), "~no-such-user/m")


def test_a_name_that_yaml_takes_for_a_date_is_told_as_one_that_it_takes_for_a_number(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: 2026-01-31\n")
    with pytest.raises(ConfigError, match=r"it must be text .*; write it as name="):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a list\n", "it must be a mapping of keys, not a list"),
        ("just words\n", "it must be a mapping of keys, not a str"),
        ("a: [\n", "not YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text, said):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"c\.yaml.*: {said}"):
        load_config(path)


def test_an_empty_file_says_nothing(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("# nothing yet\n")
    assert load_config(path) == RunConfig()


def test_a_value_that_no_file_can_hold_is_named():
    with pytest.raises(ConfigError, match=r"^pipeline\.options\.turns is b'.*': a setting is text, a number") as caught:
        load_config(None, ["pipeline.options={turns: !!binary /w==}"])
    assert "\n" not in str(caught.value)


def test_a_file_may_be_named_by_its_path_as_text(tmp_path):
    (tmp_path / "a.yaml").write_text("seed: 3")
    assert load_config(str(tmp_path / "a.yaml")).seed == 3
    with pytest.raises(ConfigError, match=r"config file .*b\.yaml: No such file"):
        load_config(str(tmp_path / "b.yaml"))


def test_an_unknown_config_name_lists_the_shipped_ones():
    with pytest.raises(ConfigError, match="did you mean 'quickstart'"):
        find_config("quickstrat")


def test_a_config_file_of_another_ending_names_the_one_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").touch()
    with pytest.raises(ConfigError, match=r"no config file runs/nope \(shipped"):  # a run's folder is like none of them
        find_config("runs/nope")
    with pytest.raises(ConfigError, match=r"no config file own\.yml, did you mean 'own.yaml'"):
        find_config("own.yml")


@pytest.mark.parametrize("path", sorted(resource("configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads(path):
    load_config(path)


def test_shipped_prompts_keep_their_names_and_the_files_of_an_ensemble_are_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.md").touch()
    named = with_absolute_paths(load_config(None, ["coach.prompt=strict"]))
    assert find_prompt_file(named.coach.prompt).name == "strict.md"
    ensemble = "coach.ensemble=[{name: openai/a, prompt: c.md}, {name: openai/b, prompt: strict}, {name: rules}]"
    prompts = [member.prompt for member in with_absolute_paths(load_config(None, [ensemble])).coach.ensemble]
    assert prompts == [tmp_path / "c.md", Path("strict"), None]


def test_a_path_that_goes_in_circles_is_left_to_whoever_opens_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    config = with_absolute_paths(load_config(None, ["train.notice_file=circle"]))
    assert config.train.notice_file == tmp_path / "circle"


def test_parameters_of_a_pipeline_are_no_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").touch()
    config = load_config(None, ["pipeline.options={rounds: 3, model: notes}", "policies.p.made_by=notes"])
    absolute = with_absolute_paths(config)
    assert absolute.pipeline.options == {"rounds": 3, "model": "notes"} and absolute.policies["p"].made_by == "notes"
    assert absolute.out == Path("runs")


def test_a_value_comes_from_the_command_line_the_file_or_the_pipeline_in_this_order(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("train: {steps: 7, tasks_per_step: 5}\n")
    below = {"train": {"steps": 1, "tasks_per_step": 2, "group_size": 3, "learning_rate": 1}}
    found = sources_of(path, ["train.steps=9"], {"train.group_size": 4}, lambda tree: below)
    steps, tasks, group, rate = (found[f"train.{key}"] for key in below["train"])
    assert (steps, tasks, group, rate) == ("command line", "c.yaml", "command line", "pipeline")
    train = load_config(path, ["train.steps=9"], {"train.group_size": 4}, lambda tree: below).train
    assert (train.steps, train.tasks_per_step, train.group_size, train.learning_rate) == (9, 5, 4, 1)


@pytest.mark.parametrize("flags", [{"name": "a\udcff"}, {"out": Path("a\udcff")}])
def test_a_name_that_is_not_utf_8_is_refused_before_the_run_and_not_when_it_has_ended(flags):
    """Its configuration could be written, and never be read again."""
    [key] = flags
    with pytest.raises(ConfigError) as refused:
        load_config(None, [], flags)
    shown = brief("a\udcff")
    assert str(refused.value) == f"{key}: a setting is UTF-8 text, and {shown} is none"


def test_a_setting_is_told_with_its_value_its_default_and_its_sentence_of_help():
    config = load_config(None, ["train.steps=7"])
    [steps] = described(config, "train.steps")
    assert (steps.key, steps.value, steps.default) == ("train.steps", "7", str(RunConfig().train.steps))
    assert steps.about == type(config.train).model_fields["steps"].description != ""
    section = described(config, "coach.evidence")
    assert {one.key for one in section} == {f"coach.evidence.{key}" for key in type(config.coach.evidence).model_fields}
    assert all(one.about for one in section) and described(config, "train.stepz") == []
