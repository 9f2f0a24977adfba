"""An adapter folder as a policy's model."""

import json
import os
import shutil

import pytest

pytest.importorskip("peft")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from coachrl.commands.dry_run import make_dry_run
from coachrl.config import load_config
from coachrl.errors import PolicyError
from coachrl.trainers.backends.torch.models.adapter_folders import whole_model
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.backends.torch.policy import load_model


@pytest.fixture
def adapter(tiny_model, tmp_path, monkeypatch):
    """One that peft itself has written, of weights that are drawn."""
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path / "cache"))
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=layers, init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def change(adapter, **settings):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | settings))


def test_an_adapter_of_peft_is_the_model_that_peft_makes_of_it(adapter, tiny_model):
    ids = torch.arange(20)[None]
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), adapter)(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(tiny_model)(ids).logits
        ours = load_model(whole_model(adapter), torch.float32, torch.device("cpu"))(ids).logits
    assert torch.allclose(ours, theirs, atol=1e-4) and not torch.allclose(ours, plain, atol=1e-1)
    assert ChatTokenizer(adapter).encode_chat([{"role": "user", "content": "hi"}])
    config = load_config(None, [f"model={adapter}"])
    assert make_dry_run(config).memory_gb == make_dry_run(load_config(None, [f"model={tiny_model}"])).memory_gb


def test_it_is_added_once_and_again_when_it_has_changed(adapter):
    first = whole_model(adapter)
    made = (first / "config.json").stat().st_mtime_ns
    assert whole_model(adapter) == first and (first / "config.json").stat().st_mtime_ns == made
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, adapter / "adapter_model.safetensors")
    assert whole_model(adapter) != first
    assert len(list(first.parent.iterdir())) == 2


def test_it_is_added_anew_where_its_base_has_changed(adapter, tiny_model, tmp_path):
    base = shutil.copytree(tiny_model, tmp_path / "base")
    change(adapter, base_model_name_or_path=str(base))
    first, weights = whole_model(adapter), (base / "model.safetensors").stat()
    os.utime(base / "model.safetensors", ns=(weights.st_atime_ns, weights.st_mtime_ns + 1))  # of the same size
    assert whole_model(adapter) != first


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"base_model_name_or_path": None}, "name the model that it belongs to as base_model_name_or_path"),
        ({"base_model_name_or_path": "/no/such"}, "its base: model /no/such: no such folder"),
        ({"use_dora": True}, "use_dora is True; LoRA with use_dora False alone is read"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_rslora": True}, "use_rslora is True"),
        ({"bias": "all"}, "bias is 'all'; LoRA with bias 'none' alone is read"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is {'q_proj': 8}; LoRA with rank_pattern {} alone is read"),
        ({"layers_to_transform": [0]}, "layers_to_transform is [0]"),
        ({"r": 3}, "it does not belong to its model"),
    ],
)
def test_one_that_cannot_be_added_is_refused_in_a_line(adapter, settings, words):
    change(adapter, **settings)
    with pytest.raises(PolicyError) as refused:
        whole_model(adapter)
    assert words in str(refused.value) and len(str(refused.value).splitlines()) == 1
    merged = adapter.parent / "cache" / "merged"
    assert not merged.exists() or not list(merged.iterdir())


def test_one_without_settings_or_whose_base_is_an_adapter_too_is_refused_in_a_line(adapter, tiny_model, tmp_path):
    base = shutil.copytree(tiny_model, tmp_path / "base")
    shutil.copyfile(adapter / "adapter_config.json", base / "adapter_config.json")
    change(adapter, base_model_name_or_path=str(base))
    with pytest.raises(PolicyError, match=r"adapter .*: its base .*base is an adapter too$"):
        whole_model(adapter)
    (adapter / "adapter_config.json").write_text("[]")
    with pytest.raises(PolicyError, match=r"adapter .*: adapter_config\.json holds no settings$"):
        whole_model(adapter)


def test_settings_that_are_left_open_are_plain(adapter):
    """A version of peft that does not know a setting leaves it out, and one may write null for none."""
    change(adapter, use_dora=None, rank_pattern=None, bias=None, fan_in_fan_out=None)
    config = json.loads((adapter / "adapter_config.json").read_text())
    del config["use_rslora"]
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert (whole_model(adapter) / "config.json").is_file()


def test_one_of_other_layers_than_are_adapted_here_is_refused(adapter):
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({name: w for name, w in weights.items() if "q_proj" in name}, adapter / "adapter_model.safetensors")
    with pytest.raises(PolicyError, match="it does not belong to its model"):
        whole_model(adapter)
