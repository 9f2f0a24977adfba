"""What a trainer with an adapter sends to engines: the weights that peft merges, by the names of the plain model."""

import pytest

pytest.importorskip("peft")

import torch
from drawing import fresh
from flat_config import with_settings
from peft import LoraConfig, get_peft_model
from tiny_models import write_tiny_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from coachrl.commands.build import load_generators
from coachrl.config import PolicyConfig, RunConfig
from coachrl.trainers.backends.openrlhf.training.adapters import matrices, weights
from coachrl.trainers.backends.openrlhf.training.saved_state import SavedState
from coachrl.trainers.backends.torch.models.lora import Adapter, make_adaptable, write_adapter


def llama(folder):
    return AutoModelForCausalLM.from_pretrained(write_tiny_model(folder / "tiny"), dtype=torch.bfloat16)


def gpt2(folder):
    """Its weights lie transposed."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=32, vocab_size=64)).bfloat16()


def adapted(model, **settings):
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, **settings)
    return get_peft_model(model, config, autocast_adapter_dtype=False)  # bfloat16, as DeepSpeed holds them


@pytest.mark.parametrize(("make", "settings"), [(llama, {}), (gpt2, {"fan_in_fan_out": True})], ids=["llama", "gpt2"])
def test_engines_are_sent_what_peft_merges_and_the_trainers_weights_stay(tmp_path, make, settings):
    names = [name for name, _ in make(tmp_path).named_parameters()]
    model = adapted(make(tmp_path), **settings)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    sent = {weight.name: weight.merged() for weight in weights(model)}
    assert list(sent) == names
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    changed = [name for name, weight in make(tmp_path).named_parameters() if not torch.equal(sent[name], weight)]
    assert len(changed) * 2 == len(matrices(model)) > 0
    for name, merged in model.float().merge_and_unload().named_parameters():
        assert sent[name].dtype == torch.bfloat16 and torch.equal(sent[name], merged.bfloat16()), name


def test_a_model_without_an_adapter_is_sent_as_it_is(tmp_path):
    model = llama(tmp_path)
    assert all(weight.merged().data_ptr() == weight.parameter.data_ptr() for weight in weights(model))
    assert [weight.name for weight in weights(model)] == [name for name, _ in model.named_parameters()]


def test_layers_names_and_shapes_are_those_of_the_embedded_backends_adapters(tmp_path):
    plain = llama(tmp_path)
    make_adaptable(plain)
    embedded = Adapter(plain, 4, 8, seed=0).parameters()
    ours = matrices(adapted(llama(tmp_path)))
    assert {name: matrix.shape for name, matrix in ours.items()} == {n: m.shape for n, m in embedded.items()}


def test_an_adapter_of_a_checkpoint_is_served_by_a_machine_without_deepspeed(tmp_path, monkeypatch):
    """Its folder holds no optimizer that the embedded backend reads."""
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path / "cache"))
    model = llama(tmp_path)
    base, saved = tmp_path / "tiny", tmp_path / "checkpoint" / "solver"
    write_adapter(saved, base, {n: m.detach().clone() for n, m in matrices(adapted(model)).items()}, 4, 8)
    SavedState(1, 1, {"trainers": 2, "zero_stage": 3, "lora_rank": 4, "lora_alpha": 8}).write(saved)
    frozen = {"other": PolicyConfig(trainable=False)}
    config = with_settings(
        RunConfig(model=str(base), backend="openrlhf", policies=frozen), lora_rank=4, lora_alpha=8, device="cpu"
    )
    served = load_generators(config, ["solver", "other"], tmp_path / "checkpoint", in_process=True)
    samples = fresh(served, "solver", 4)
    ids = torch.cat([torch.from_numpy(samples[0].prompt_ids_P), torch.from_numpy(samples[0].response_ids_L)])
    with torch.no_grad():
        logits = adapted(llama(tmp_path)).float().merge_and_unload()(ids[None]).logits[0]
    found = logits.log_softmax(-1)[len(samples[0].prompt_ids_P) - 1 : -1]
    expected = found.gather(1, torch.from_numpy(samples[0].response_ids_L)[:, None])[:, 0]
    assert (expected - torch.from_numpy(samples[0].old_logprobs_L)).abs().mean() < 0.05
    assert (fresh(served, "other", 4)[0].old_logprobs_L[0] != samples[0].old_logprobs_L[0]).all()
    served.close()
