"""Settings that are named on the command line, and that nothing would read."""

import pytest

import coachrl
from coachrl.commands.configure import run_config
from coachrl.config import RunConfig, check_read, parse_config
from coachrl.config.unread import _NEEDS
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run


@pytest.mark.parametrize(
    ("overrides", "missing"),
    [
        (["openrlhf.gpus=4"], "backend=openrlhf"),
        (["openrlhf={gpus: 4}"], "backend=openrlhf"),
        (["openrlhf.engine_args={seed: 3}"], "backend=openrlhf"),
        (["vllm.memory=0.3"], "backend=vllm"),
        (["backend=openrlhf", "torch.device=cpu"], "backend=torch or backend=vllm"),
        (["backend=vllm", "torch.generation_batch=8"], "backend=torch"),
        (["torch.lora_alpha=8"], "torch.lora_rank"),
        (["rollout.silence_timeout_s=5"], "rollout.workers above 1"),
        (["sandbox.url=http://127.0.0.1:8080"], "sandbox.kind=fusion"),
        (["sampling.candidates=8"], "sampling.scheme=tree"),
        (["reward.team_weight=0.5"], "reward.source=environment"),
        (["coach.combine=median"], "coach.ensemble"),
        (["coach.temperature=0.7"], "a language model in coach.name"),
        (["coach.thinking_budget=100"], "a language model in coach.name"),
        (["coach.ensemble=[{name: rules}, {name: rules}]", "coach.structured=true"], "a language model in coach.name"),
        (["coach.tools.seconds=5"], "coach.tools.turns"),
        (["coach.strategic.reliable_at=0.5"], "coach.strategic.window_steps"),
        (["coach.retrospective.name=gemini-2.5-pro"], "algorithm.name=retrospective"),
        (["audit.reference_set=5"], "audit.every"),
    ],
)
def test_a_setting_of_what_is_not_chosen_is_refused_with_what_it_needs(overrides, missing):
    key = overrides[-1].partition("=")[0]
    with pytest.raises(ConfigError, match=f"nothing reads {key}.* without {missing}: set that too, or leave {key}"):
        run_config(None, overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["backend=openrlhf", "openrlhf.gpus=4", "torch.lora_rank=8", "torch.lora_alpha=16"],
        ["backend=vllm", "vllm.memory=0.3", "torch.device=cuda:1"],
        ["openrlhf.gpus=1", "vllm={}", "sampling.candidates=4"],  # what they are anyway
        ["sandbox.kind=fusion", "sandbox.url=http://127.0.0.1:8080"],
        ["coach.name=gemini-2.5-pro", "coach.tools={turns: 2, seconds: 5}"],
        ["algorithm.name=retrospective", "coach.evidence.ground_truth=none", "coach.retrospective.name=gemini-2.5-pro"],
        ["audit={every: 1, reference_set: 5}"],
        ["coach.budget_usd=5"],  # which the rules keep to
        ["coach.temperature=0", "coach.max_tokens=8192"],  # what they are anyway
        ["coach.ensemble=[{name: rules}, {name: gpt-4o}]", "coach.temperature=0.7"],
        ["coach.name=my_module:Mine", "coach.max_tokens=99"],  # which may read them
        [
            *("algorithm.name=retrospective", "coach.evidence.ground_truth=none"),
            *("coach.retrospective.name=gemini-2.5-pro", "coach.reasoning_effort=low"),
        ],
        [  # of which the adviser's price is made
            *("pipeline.name=coop_code", "pipeline.options={feedback: coach, adviser: openai/mine}"),
            *("coach.budget_usd=5", "coach.usd_per_million_tokens=[1, 2]"),
        ],
        ["pipeline.name=gateway", "coach.usd_per_million_tokens=[1, 2]"],  # of external roles
        ["pipeline.name=coachrl.pipelines.code.coop_code:CoopCode", "coach.library=litellm"],  # as may be
        ["openrlhf.ray_address=auto"],  # which a launch file for KubeRay says of every run
        ["algorithm.name=coachrl.trainers.algorithms.outcome:Outcome", "reward.team_weight=2"],  # which is handed it
    ],
)
def test_a_setting_that_is_read_or_is_as_it_would_be_anyway_is_taken(overrides):
    run_config(None, overrides)


def test_a_file_may_serve_two_backends(tmp_path):
    path = tmp_path / "shared.yaml"
    path.write_text("backend: openrlhf\nopenrlhf: {gpus: 8}\nsampling: {candidates: 8}\n")
    assert run_config(str(path), ["backend=torch"]).openrlhf.gpus == 8
    assert coachrl.configure({"openrlhf": {"gpus": 8}}, backend="torch").openrlhf.gpus == 8
    assert coachrl.configure(parse_config({"openrlhf": {"gpus": 8}}, ""), seed=3).openrlhf.gpus == 8
    with pytest.raises(ConfigError, match=r"nothing reads openrlhf\.gpus"):
        coachrl.configure({"openrlhf": {"gpus": 8}}, openrlhf={"gpus": 4})


def test_a_run_that_goes_on_is_told_too_and_is_not_changed(tmp_path):
    run = Run.create(parse_config({"name": "a", "out": str(tmp_path)}, ""))
    before = (run.folder / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=r"nothing reads openrlhf\.gpus without backend=openrlhf"):
        run.reconfigure(["openrlhf.gpus=4"])
    assert (run.folder / "config.yaml").read_text() == before
    assert run.config(["openrlhf.gpus=4"]).openrlhf.gpus == 4  # serve chooses its engine itself


def test_every_setting_of_the_table_is_one():
    for setting, _, _ in _NEEDS:
        value = RunConfig()
        for key in setting.split("."):
            value = getattr(value, key)
    check_read(RunConfig(), ())
