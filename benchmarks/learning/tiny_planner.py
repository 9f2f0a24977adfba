"""A model from scratch that has seen a few hundred mazes: what the AT-GRPO benchmark starts from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from coachrl.config import SftConfig, TorchConfig
from coachrl.config.tasks import PlanPathTasks
from coachrl.seeding import generator
from coachrl.tasks.worlds.planpath import generate_planpath
from coachrl.trainers.backends.torch.sft import run_sft

# One letter for the speaker, the text, the end of the turn.
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
PROMPTS = {
    "tool.md": "---\nfields: [state]\n---\nT\n{{state}}\n",
    "planner.md": "---\nfields: [state, proposal]\n---\nP\n{{state}}\n{{proposal}}\n",
    "planner.alone.md": "---\nfields: [state]\n---\nP\n{{state}}\nnone\n",
}
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "max_position_embeddings": 96}
SOUND = 0.5  # share of demonstrations that are right; the others are random moves


def write_prompts(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in PROMPTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def warm_model(folder: Path, seed: int, size: int, demos: int, epochs: int) -> dict[str, float]:
    """A small byte-level Llama at `folder`/warm, taught by a player who knows the way through `demos` mazes half of the
    time. Returns the losses of that, and how many weights there are."""
    weights = write_random_model(folder / "random", seed, byte_tokenizer())
    data = folder / "demos.jsonl"
    data.write_text("".join(json.dumps(demo) + "\n" for demo in conversations(seed, size, demos)), encoding="utf-8")
    settings = SftConfig(
        epochs=epochs, learning_rate=3e-3, batch_size=64, seed=seed, log_every=50, torch=TorchConfig(threads=1)
    )
    losses = run_sft(data, folder / "random", folder / "warm", settings, lambda line: print(line, flush=True))
    return losses | {"weights": float(weights)}


def write_random_model(folder: Path, seed: int, tokenizer: Tokenizer, **other: int) -> int:
    """Untrained weights and tokenizer. other: sizes of the model's configuration in place of these. Returns the number
    of weights."""
    tokenizer.add_special_tokens(["<|end|>"])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 4, **other}
    special = {"bos_token_id": None, "eos_token_id": fast.eos_token_id, "pad_token_id": fast.pad_token_id}
    config = transformers.LlamaConfig(vocab_size=len(fast), tie_word_embeddings=True, **sizes, **special)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def byte_tokenizer() -> Tokenizer:
    """A token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def conversations(seed: int, size: int, count: int) -> list[dict]:
    """For each of `count` mazes of the training split: the tool's answer, and the planner's to a right proposal, to a
    random one and to none. Half of the answers are a shortest way, the others are random too."""
    rng = generator(seed, "demos")

    def listed(moves: Sequence[str]) -> str:
        return f"[{','.join(moves)}]"

    def at_random() -> str:
        return listed(["UDLR"[i] for i in rng.integers(4, size=int(rng.integers(1, 5)))])

    found = []
    for task in generate_planpath(PlanPathTasks(train_count=count, size=size), seed + 10_000, "train"):
        maze = task.ground_truth
        way = listed(maze.shortest_path(maze.start))
        for prompt in (f"T\n{maze.text}", *(f"P\n{maze.text}\n{proposal}" for proposal in (way, at_random(), "none"))):
            answer = way if rng.random() < SOUND else at_random()
            found.append({"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]})
    return found
