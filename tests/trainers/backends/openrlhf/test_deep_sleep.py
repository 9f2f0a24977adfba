"""What an engine would miss whose weights were thrown away, and where throwing them away is refused."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import torch

from coachrl.config import load_config
from coachrl.errors import ConfigError
from coachrl.trainers.backends.openrlhf.engines.deep_sleep import missing


class Norm(torch.nn.Module):
    """With a scale that it does not register, as vLLM's norms without weights have one."""

    def __init__(self):
        super().__init__()
        self.weight = torch.ones(4)


class Layer(torch.nn.Module):
    def __init__(self, helper=None):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4, bias=False)
        self.register_buffer("table", torch.ones(4), persistent=False)
        self.half = self.linear.weight.detach()[:2]  # a view of what is sent
        self.kv_cache = torch.ones(4)  # written before it is read
        self.scale_in_main_memory = torch.tensor(1.0)
        self.nothing = torch.tensor([])
        self.helper = helper


def found(model, loaded=("0.linear.weight",), drafts=False):
    return missing(model, loaded, drafts, thrown_away=lambda tensor: tensor.dim() > 0)


def test_what_is_sent_and_what_is_registered_comes_back():
    assert found(torch.nn.Sequential(Layer())) == []


def test_what_is_not_sent_or_not_registered_is_missing():
    assert found(torch.nn.Sequential(Layer()), loaded=()) == ["0.linear.weight"]
    assert found(torch.nn.Sequential(Layer(), Norm())) == ["1.weight"]
    assert found(torch.nn.Sequential(Layer(helper={"slopes": [torch.ones(2)]}))) == ["0.helper.slopes.0"]
    elsewhere = SimpleNamespace(slopes=torch.ones(2))  # of no class of vLLM's
    assert found(torch.nn.Sequential(Layer(helper=elsewhere))) == []
    assert found(torch.nn.Sequential(Layer()), drafts=True) == ["the model that drafts"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["openrlhf.sleep=false"], "set openrlhf.colocate=true and sleep=true"),
        (["openrlhf.colocate=false"], "set openrlhf.colocate=true and sleep=true"),
        (["openrlhf.engine_args={quantization: fp8}"], r"engine_args\.quantization makes.*sleep_level=1"),
        (["openrlhf.engine_args={speculative_config: {method: ngram}}"], r"engine_args\.speculative_config makes"),
        (["openrlhf.sleep_level=3"], "sleep_level"),
    ],
)
def test_weights_are_thrown_away_only_where_all_are_sent_again(settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config(None, ["backend=openrlhf", "openrlhf.sleep_level=2", *settings])
    assert load_config(None, ["backend=openrlhf", "openrlhf.sleep_level=2"]).openrlhf.sleep_level == 2
