"""Tiny random models with a byte-level tokenizer and a chat template, made on the spot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

CHATML = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tiny_model(folder: Path, seed: int = 0, template: str | None = CHATML, **config: float) -> Path:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>", bos_token="<|start|>"
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.15,  # far enough from zero for replies that are not uniform noise
    }
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(fast),
            bos_token_id=fast.bos_token_id,
            eos_token_id=fast.eos_token_id,
            pad_token_id=fast.pad_token_id,
            **(sizes | config),
        )
    )
    model.save_pretrained(folder)
    return folder


def write_bundled_model_in_small(cache: Path) -> Path:
    """A folder for COACHRL_CACHE in which the bundled model has its own tokenizer, chat template and context, and one
    narrow layer of random weights: a run that names it goes as it always does, in a hundredth of the time."""
    transformers = pytest.importorskip("transformers")
    from coachrl.resources import cache_folder
    from coachrl.trainers.backends.torch.models.smollm2 import smollm2_folder

    whole = smollm2_folder()
    small = cache / whole.relative_to(cache_folder())
    shutil.copytree(whole, small, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((whole / "config.json").read_text())
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    config |= sizes | {"num_attention_heads": 2, "num_key_value_heads": 2}
    transformers.set_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).save_pretrained(small)
    return cache
