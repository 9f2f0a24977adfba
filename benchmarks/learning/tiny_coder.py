"""A model from scratch that has read the demonstrations of the data-science team, and held-out tables for that team."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from tiny_planner import write_random_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from coachrl.config import SftConfig, TorchConfig
from coachrl.jsonl import folder_aside, read_jsonl
from coachrl.resources import cache_folder
from coachrl.seeding import generator
from coachrl.tasks.tabular.dsbench_lite import ensure_dsbench_lite
from coachrl.tasks.tabular.layout import TabularTask
from coachrl.trainers.backends.torch.sft import run_sft
from examples.dsbench_demonstrations.tables import TableTask, make_table

SIZES = {
    "hidden_size": 160,
    "intermediate_size": 432,
    "num_hidden_layers": 4,
    "max_position_embeddings": 1536,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
}
TOKENS = 1024
# A column's name is the same tokens wherever it stands, so that it can be copied: names with their dots and underscores
# are pieces of their own, and punctuation takes the blanks beside it.
PIECES = r" ?[A-Za-z]+(?:[_.][A-Za-z]+)*|[0-9]| ?[^\sA-Za-z0-9]+(?:\n+ *| )?|\s+"
TABLES_SEED = 20_261  # of the held-out tables; demonstrations have seed 0


def warm_coder(
    demonstrations: Path, folder: Path, settings: SftConfig, log: Callable[[str], None] = print
) -> dict[str, float]:
    """A small Llama at `folder`/warm, taught by all roles' demonstrations together. Returns the losses of that, and how
    many weights there are."""
    lines = [line for path in sorted(demonstrations.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    data = folder / "all.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = [message["content"] for record in read_jsonl(data) for message in record["messages"]]
    weights = write_random_model(folder / "random", settings.seed, tokenizer_of(texts), **SIZES)
    losses = run_sft(data, folder / "random", folder / "warm", settings, log)
    return losses | {"weights": float(weights)}


def tokenizer_of(texts: Sequence[str]) -> Tokenizer:
    """Byte-pair encoding of these texts, with every byte in it, so that it can spell any other text too."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, letters])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=TOKENS, initial_alphabet=alphabet))
    return tokenizer


def sft_settings(epochs: int, seed: int) -> SftConfig:
    """At most two threads: what the small model can use."""
    torch = TorchConfig(threads=2, precision="float32", micro_batch_tokens=8192)
    return SftConfig(epochs=epochs, learning_rate=2e-3, batch_size=16, seed=seed, log_every=50, torch=torch)


def write_tasks(root: Path, made: int) -> list[str]:
    """dsbench-lite at `root`, in DSBench's layout, with `made` more held-out tasks: tables by the generator that made
    the demonstrations', from numbers that none of theirs came from. Returns the settings that name these tasks."""
    if not root.exists():
        with folder_aside(root) as aside:
            shutil.copytree(ensure_dsbench_lite(cache_folder()), aside, dirs_exist_ok=True)
            tables = [_made(aside / "made", number) for number in range(made)]
            _add(aside, tables)
            shutil.rmtree(aside / "made", ignore_errors=True)
    lists = f"train: {root / 'train.jsonl'}, heldout: {root / 'eval.jsonl'}"
    return [f"tasks={{source: dsbench, root: {root}, {lists}, cleaned_prompts: {root / 'cleaned_prompts.json'}}}"]


def _made(folder: Path, number: int) -> TableTask:
    name = f"made-{number:02d}"
    return make_table(name, folder / name, generator(TABLES_SEED, "held-out", number))


def _add(root: Path, tables: Sequence[TableTask]) -> None:
    """Tables and what is declared of them, to what `root` holds."""
    prompts = json.loads((root / "cleaned_prompts.json").read_text(encoding="utf-8"))
    for table in tables:
        truth, task = table.truth, table.task
        described = TabularTask(task.id, task.category, truth.metric, table.target, task.prompt, truth.id_column)
        train, test = (pd.read_csv(task.files[name]) for name in ("train.csv", "test.csv"))
        answers = pd.read_csv(truth.answer_csv)
        described.write_tables(root, train, test.assign(**{table.target: answers[table.target]}))
        prompts[task.id] = described.cleaned_prompt()
        with (root / "eval.jsonl").open("a", encoding="utf-8") as listed:
            listed.write(described.list_line())
    (root / "cleaned_prompts.json").write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")
