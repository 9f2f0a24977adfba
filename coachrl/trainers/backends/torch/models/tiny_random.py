"""A model without any training, made on the spot: to try parts of one's own, and backends, in seconds.

Half a million random weights over bytes. It writes some thirty characters of printable ASCII and ends: whatever it is
told, though what a reward asks of its characters it can learn.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from coachrl.resources import cache_folder
from coachrl.trainers.backends.torch.models.disk_errors import write_into_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

NAME = "tiny-random"
_CACHE_FOLDER = f"{NAME}-1"  # the number grows whenever what is written changes
_END = "<|end|>"
_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}" + _END + "{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_ALWAYS = 0  # the dimension of the hidden states that is the same at every position, and so says what is always likely
_REPLY_TOKENS = 30
_CONTEXT_LENGTH = 16384


def tiny_random_folder() -> Path:
    """Its Hugging Face folder, written at the first use. Raises PolicyError where the cache cannot be written."""
    target = cache_folder() / "models" / _CACHE_FOLDER
    if not target.is_dir():
        write_into_cache(NAME, target, write_tiny_random)
    return target


def write_tiny_random(folder: Path, context_length: int = _CONTEXT_LENGTH) -> Path:
    """Heads of 64, for which every engine has kernels, and weights so small that bfloat16's rounding does not look like
    weights that differ. The global random state is left as it was."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _byte_tokenizer()
    tokenizer.save_pretrained(folder)
    end = tokenizer.eos_token_id
    shape = LlamaConfig(
        architectures=["LlamaForCausalLM"], vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=context_length,
        initializer_range=0.06, bos_token_id=end, eos_token_id=end, pad_token_id=end, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(shape)
    _make_likely(model, tokenizer)
    shape.save_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_END])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END, pad_token=_END)
    fast.chat_template = _TEMPLATE
    return fast


def _make_likely(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Bytes beyond printable ASCII hardly ever, and the end once in `_REPLY_TOKENS`."""
    import torch

    printable = [number for number in range(len(tokenizer)) if " " <= tokenizer.decode([number]) <= "~"]
    logits = torch.full((len(tokenizer),), -8.0)
    logits[printable] = 0.0
    logits[tokenizer.eos_token_id] = math.log(len(printable) / (_REPLY_TOKENS - 1))
    with torch.no_grad():
        model.get_input_embeddings().weight[:, _ALWAYS] = 1.0
        states_TD = model.base_model(input_ids=torch.arange(len(tokenizer))[None]).last_hidden_state[0]
        model.get_output_embeddings().weight[:, _ALWAYS] = logits / states_TD[:, _ALWAYS].mean()
