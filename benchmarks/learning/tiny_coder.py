"""A model from scratch that has read the demonstrations of the data-science team, and held-out tables for that team."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from tiny_planner import write_random_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from coachrl.config import SftConfig, TorchConfig
from coachrl.jsonl import folder_aside, read_jsonl
from coachrl.resources import cache_folder
from coachrl.seeding import generator
from coachrl.tasks.tabular.dsbench_lite import ensure_dsbench_lite
from coachrl.tasks.tabular.dsbench_lite_sets import TASKS
from coachrl.tasks.tabular.layout import TabularTask
from coachrl.trainers.backends.torch.sft import run_sft
from examples.dsbench_demonstrations.tables import TableTask, make_table

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 336,
    "num_hidden_layers": 3,
    "max_position_embeddings": 1536,
}
TOKENS = 1024
# From scratch, on so few demonstrations, no model learns to copy names that it has never seen: those of the id and the
# target are of a closed list, in demonstrations and tasks alike.
IDS = sorted({task.id_column for task in TASKS} | {"ID", "key", "row", "case_id", "customer_id"})
WORDS = "claim grade income outcome price rent result risk score weight yield"
TARGETS = sorted({task.target for task in TASKS} | {*WORDS.split()})
# A column's name is the same tokens wherever it stands, so that it can be copied: names with their dots and underscores
# are pieces of their own, and punctuation takes the blanks beside it.
PIECES = r" ?[A-Za-z]+(?:[_.][A-Za-z]+)*|[0-9]| ?[^\sA-Za-z0-9]+(?:\n+ *| )?|\s+"
ROWS = {"train.csv": 120, "test.csv": 40, "test_answer.csv": 40}  # of a task, as in the made tables
TABLES_SEED = 20_261  # of the held-out tables; demonstrations have seed 0


def warm_coder(
    demonstrations: Path, folder: Path, settings: SftConfig, copies: int, log: Callable[[str], None] = print
) -> dict[str, float]:
    """A small Llama at `folder`/warm, taught by all roles' demonstrations together, `copies` times each under other
    names of the id and the target. Returns the losses of that, and how many weights there are."""
    records = [record for path in sorted(demonstrations.glob("*.jsonl")) for record in read_jsonl(path)]
    rng = generator(settings.seed, "names")
    talks = [renamed(record["messages"], *draw_names(rng)) for _ in range(copies) for record in records]
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "demonstrations.jsonl"
    data.write_text("".join(f"{json.dumps({'messages': talk})}\n" for talk in talks), encoding="utf-8")
    texts = [message["content"] for talk in talks for message in talk]
    weights = write_random_model(folder / "random", settings.seed, tokenizer_of(texts), **SIZES)
    losses = run_sft(data, folder / "random", folder / "warm", settings, log)
    return losses | {"weights": float(weights)}


def draw_names(rng: np.random.Generator) -> tuple[str, str]:
    """Of an id column and a target."""
    return str(rng.choice(IDS)), str(rng.choice(TARGETS))


def renamed(messages: Sequence[Mapping[str, str]], id_column: str, target: str) -> list[dict[str, str]]:
    """A conversation with these names in the place of its own, in prompts, programs and errors."""
    changed = {}
    for field, name in (("id", id_column), ("target", target)):
        if found := re.search(rf"^{field}: (.*)$", messages[0]["content"], re.MULTILINE):
            changed |= {f"{field}: {found[1]}\n": f"{field}: {name}\n"}
            changed |= {f"{quote}{found[1]}{quote}": f"{quote}{name}{quote}" for quote in "\"'"}
    if not changed:
        return [dict(message) for message in messages]
    pattern = re.compile("|".join(map(re.escape, changed)))
    return [
        {"role": m["role"], "content": pattern.sub(lambda match: changed[match[0]], m["content"])} for m in messages
    ]


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


def sft_settings(seed: int) -> SftConfig:
    """One thread: two wait for each other where other jobs run beside."""
    torch = TorchConfig(threads=1, precision="float32", micro_batch_tokens=8192)
    return SftConfig(epochs=1, learning_rate=3e-3, batch_size=16, seed=seed, log_every=50, torch=torch)


def write_tasks(root: Path, made: int) -> list[str]:
    """dsbench-lite at `root`, in DSBench's layout, each table cut to its first rows (whole, they take most of a run's
    time in the sandbox), with `made` more held-out tasks: tables by the generator that made the demonstrations', from
    numbers that none of theirs came from. Returns the settings that name these tasks."""
    if not root.exists():
        with folder_aside(root) as aside:
            shutil.copytree(ensure_dsbench_lite(cache_folder()), aside, dirs_exist_ok=True)
            for table in aside.glob("*/*/*.csv"):
                _cut(table)
            tables = [_made(aside / "made", number) for number in range(made)]
            _add(aside, tables)
            shutil.rmtree(aside / "made", ignore_errors=True)
    lists = f"train: {root / 'train.jsonl'}, heldout: {root / 'eval.jsonl'}"
    return [f"tasks={{source: dsbench, root: {root}, {lists}, cleaned_prompts: {root / 'cleaned_prompts.json'}}}"]


def _cut(table: Path) -> None:
    """The rows of every table are in random order, and those of test.csv in that of its answers."""
    cells = pd.read_csv(table, dtype=str, keep_default_na=False)
    cells.head(ROWS[table.name]).to_csv(table, index=False, lineterminator="\n")


def _made(folder: Path, number: int) -> TableTask:
    name = f"made-{number:02d}"
    return make_table(name, folder / name, generator(TABLES_SEED, "held-out", number))


def _add(root: Path, tables: Sequence[TableTask]) -> None:
    """Tables under names of the closed list, and what is declared of them, to what `root` holds."""
    prompts, rng = (
        json.loads((root / "cleaned_prompts.json").read_text(encoding="utf-8")),
        generator(TABLES_SEED, "names"),
    )
    for table in tables:
        truth, task = table.truth, table.task
        columns = {column.lower() for column in pd.read_csv(task.files["train.csv"], nrows=0)}
        drawn = iter(lambda: draw_names(rng), None)
        id_column, target = next(pair for pair in drawn if columns.isdisjoint(name.lower() for name in pair))
        names = {truth.id_column: id_column, table.target: target}
        described = TabularTask(task.id, task.category, truth.metric, target, f"Predict {target}.", id_column)
        train, test = (pd.read_csv(task.files[name]).rename(columns=names) for name in ("train.csv", "test.csv"))
        described.write_tables(root, train, test.assign(**{target: pd.read_csv(truth.answer_csv)[table.target]}))
        prompts[task.id] = described.cleaned_prompt()
        with (root / "eval.jsonl").open("a", encoding="utf-8") as listed:
            listed.write(described.list_line())
    (root / "cleaned_prompts.json").write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")
