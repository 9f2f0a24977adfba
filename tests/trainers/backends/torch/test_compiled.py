"""Compiled layers: the same update, up to rounding, and a clear word where they cannot be had."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("torch")

import torch
from flat_config import with_settings
from pydantic import ValidationError
from test_gradient_checkpointing import samples
from tiny_models import write_tiny_model
from torch_backends import EXACT

from coachrl.config import RunConfig
from coachrl.errors import PolicyError
from coachrl.trainers.backends.torch import compiled
from coachrl.trainers.backends.torch.policy import TrainablePolicy

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler (g++)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "two", num_hidden_layers=2)


@pytest.fixture(autouse=True)
def fresh(tmp_path_factory, monkeypatch):
    """Code that is compiled here serves no other test's layers, and lies in a folder of its own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    yield
    torch._dynamo.reset()


def trained(folder, **settings):
    policy = TrainablePolicy(folder, with_settings(EXACT, **settings), CPU)
    stats = [policy.train(samples()) for _ in range(2)]
    return stats, {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}


def updated(folder, **settings):
    policy = TrainablePolicy(folder, with_settings(EXACT, **settings), CPU)
    stats = [policy.train(samples()) for _ in range(2)]
    return stats, dict(policy.model.named_parameters()), policy


@pytest.fixture
def traced_by(monkeypatch):
    """Have layers compiled by a backend of torch.compile: aot_eager traces and differentiates as inductor does, and
    writes no C++, which takes half a minute to build."""

    def use(compiler):
        compile_by = torch.nn.Module.compile
        monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: compile_by(self, backend=compiler, **how))

    return use


@pytest.mark.parametrize(
    ("compiler", "settings"),
    [
        ("aot_eager", {"micro_batch_tokens": 128, "gradient_checkpointing": True}),
        pytest.param(
            "inductor",
            {"micro_batch_tokens": 128, "gradient_checkpointing": True},
            marks=[needs_compiler, pytest.mark.thorough],
        ),
        pytest.param("inductor", {}, marks=[needs_compiler, pytest.mark.thorough]),
    ],
)
def test_an_update_is_that_of_plain_layers_repeats_and_leaves_a_plain_checkpoint(
    folder, tmp_path, traced_by, compiler, settings
):
    traced_by(compiler)
    plain, weights, _ = updated(folder, **settings)
    found, others, policy = updated(folder, compile=True, **settings)
    for step, same in zip(plain, found, strict=True):
        assert same == pytest.approx(step, rel=1e-3, abs=1e-5)
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-3, atol=1e-4)

    again, repeated, _ = updated(folder, compile=True, **settings)
    assert again == found
    assert all(torch.equal(repeated[name], weight) for name, weight in others.items())

    policy.save(tmp_path / "kept", weights_version=3)
    loaded = TrainablePolicy(folder, EXACT, CPU)
    assert loaded.load(tmp_path / "kept") == 3
    assert all(torch.equal(weight, others[name]) for name, weight in loaded.model.named_parameters())


def test_a_machine_without_a_working_compiler_is_told_so(folder, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    with pytest.raises(PolicyError, match=r"model .*two: torch\.compile failed, set it to false or mend it: \S+"):
        TrainablePolicy(folder, with_settings(EXACT, compile=True), CPU)


@pytest.mark.thorough
def test_layers_that_give_something_else_are_refused(folder, monkeypatch, traced_by):
    traced_by("aot_eager")
    real = compiled._states
    calls = []

    def drifts(model):
        calls.append(real(model))
        return calls[-1] + (0.1 if len(calls) == 3 else 0.0)

    monkeypatch.setattr(compiled, "_states", drifts)
    with pytest.raises(PolicyError, match=r"would change its hidden states by 0\.1 on average"):
        TrainablePolicy(folder, with_settings(EXACT, compile=True), CPU)


@pytest.mark.parametrize(
    ("off", "said"), [(0.0, None), (1e-7, None), (1e-3, r"by 0\.001 on average"), (float("nan"), "by nan on average")]
)
def test_what_compiled_layers_give_is_held_against_the_rounding_of_plain_ones(folder, monkeypatch, off, said):
    """Nothing is compiled: the results are made up. In float32 1e-5 of the states' spread is allowed."""

    def states(model, layers, precision):
        with torch.no_grad(), precision():
            return compiled._states(model) + off

    monkeypatch.setattr(compiled, "_states_of_compiled", states)
    settings = with_settings(EXACT, compile=True)
    if said is None:
        TrainablePolicy(folder, settings, CPU)
    else:
        with pytest.raises(PolicyError, match=said):
            TrainablePolicy(folder, settings, CPU)


def test_an_architecture_without_the_shared_prefix_is_refused(folder, monkeypatch):
    monkeypatch.setattr("coachrl.trainers.backends.torch.policy.use_shared_prefix_of", lambda folder, model: False)
    with pytest.raises(PolicyError, match=r"torch\.compile is not supported by LlamaForCausalLM: set it to false"):
        TrainablePolicy(folder, with_settings(EXACT, compile=True), CPU)


def test_adapters_are_refused_before_anything_is_loaded():
    with pytest.raises(ValidationError, match=r"leave out torch\.lora_rank or compile"):
        RunConfig.model_validate({"torch": {"compile": True, "lora_rank": 4}})
