"""A model from scratch that has read the demonstrations of the data-science team, and held-out tables for that team."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from tiny_planner import write_random_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from coachrl.config import SftConfig, TorchConfig
from coachrl.resources import cache_folder
from coachrl.seeding import generator
from coachrl.storage.atomic import folder_aside
from coachrl.storage.jsonl import read_jsonl
from coachrl.tasks.tabular.dsbench_lite import ensure_dsbench_lite
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
# From scratch, on so few demonstrations, no model learns to copy a name out of its prompt: in demonstrations and tasks
# alike, the id and the target of every table have these.
ID, TARGET = "id", "target"
# A column's name is the same tokens wherever it stands, so that it can be copied: names with their dots and underscores
# are pieces of their own, and punctuation takes the blanks beside it.
PIECES = r" ?[A-Za-z]+(?:[_.][A-Za-z]+)*|[0-9]| ?[^\sA-Za-z0-9]+(?:\n+ *| )?|\s+"
ROWS = {"train.csv": 120, "test.csv": 40, "test_answer.csv": 40}  # of a task, as in the made tables
TABLES_SEED = 20_261  # of the held-out tables; demonstrations have seed 0


def warm_coder(
    demonstrations: Path, folder: Path, settings: SftConfig, rounds: int, log: Callable[[str], None] = print
) -> dict[str, float]:
    """A small Llama at `folder`/warm, taught by all roles' demonstrations together, in rounds in each of which the
    learning rate rises and falls. Returns the losses of the last, and how many weights there are."""
    records = [record for path in sorted(demonstrations.glob("*.jsonl")) for record in read_jsonl(path)]
    talks = [renamed(record["messages"]) for record in records]
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "demonstrations.jsonl"
    data.write_text("".join(f"{json.dumps({'messages': talk})}\n" for talk in talks), encoding="utf-8")
    texts = [message["content"] for talk in talks for message in talk]
    weights = write_random_model(folder / "round-0", settings.seed, tokenizer_of(texts), **SIZES)
    for number in range(1, rounds + 1):
        of_round = settings.model_copy(update={"seed": settings.seed + number - 1})
        losses = run_sft(data, folder / f"round-{number - 1}", folder / f"round-{number}", of_round, log)
    (folder / f"round-{rounds}").rename(folder / "warm")
    return losses | {"weights": float(weights)}


def renamed(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """A conversation with the one id and target in the place of its own, in prompts, programs and errors."""
    changed = {}
    for field, name in (("id", ID), ("target", TARGET)):
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


def sft_settings(epochs: int, seed: int) -> SftConfig:
    """One thread: two wait for each other where other jobs run beside."""
    torch = TorchConfig(threads=1, precision="float32", micro_batch_tokens=8192)
    return SftConfig(epochs=epochs, learning_rate=3e-3, batch_size=16, seed=seed, log_every=50, torch=torch)


def write_tasks(root: Path, made: int) -> list[str]:
    """dsbench-lite at `root`, in DSBench's layout, with the one id and target, and each table cut to its first rows
    (whole, they take most of a run's time in the sandbox); and `made` more held-out tasks: tables by the generator that
    made the demonstrations', from numbers that none of theirs came from. Returns the settings that name them."""
    if not root.exists():
        with folder_aside(root) as aside:
            shutil.copytree(ensure_dsbench_lite(cache_folder()), aside, dirs_exist_ok=True)
            prompts = json.loads((aside / "cleaned_prompts.json").read_text(encoding="utf-8"))
            for number in range(made):
                table = _made(aside / "made", number)
                prompts[table.task.id] = _add(aside, table)
            shutil.rmtree(aside / "made", ignore_errors=True)
            for name, declared in prompts.items():
                own = {declared["id_column"]: ID, declared["target_column"]: TARGET}
                for file in aside.glob(f"*/{name}/*.csv"):
                    _shorten(file, own)
                declared |= {"id_column": ID, "target_column": TARGET}
            (aside / "cleaned_prompts.json").write_text(json.dumps(prompts, indent=1) + "\n", encoding="utf-8")
    lists = f"train: {root / 'train.jsonl'}, heldout: {root / 'eval.jsonl'}"
    return [f"tasks={{source: dsbench, root: {root}, {lists}, cleaned_prompts: {root / 'cleaned_prompts.json'}}}"]


def _shorten(file: Path, names: Mapping[str, str]) -> None:
    """Its rows are in random order, and those of test.csv in that of its answers."""
    cells = pd.read_csv(file, dtype=str, keep_default_na=False)
    cells.head(ROWS[file.name]).rename(columns=names).to_csv(file, index=False, lineterminator="\n")


def _made(folder: Path, number: int) -> TableTask:
    name = f"made-{number:02d}"
    return make_table(name, folder / name, generator(TABLES_SEED, "held-out", number))


def _add(root: Path, table: TableTask) -> dict[str, str]:
    """The table, to the held-out tasks of `root`. Returns what is declared of it."""
    truth, task = table.truth, table.task
    described = TabularTask(task.id, task.category, truth.metric, table.target, task.prompt, truth.id_column)
    train, test = (pd.read_csv(task.files[name]) for name in ("train.csv", "test.csv"))
    described.write_tables(root, train, test.assign(**{table.target: pd.read_csv(truth.answer_csv)[table.target]}))
    with (root / "eval.jsonl").open("a", encoding="utf-8") as listed:
        listed.write(described.list_line())
    return described.cleaned_prompt()
