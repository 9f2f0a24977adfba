"""Thousands of damaged inputs through functions that the command line calls: each loads, or is refused in a line."""

import gzip
import json
import os
import socket
import tracemalloc
from pathlib import Path

import pytest
from command_line import coachrl
from fuzzing import JSON_VALUES, VALUES, damaged_override, damaged_text, pick, setting_keys
from math_files import load_math
from yaml.scanner import Scanner

from coachrl.coach.prompt_rendering import load_coach_prompt
from coachrl.commands.dry_run import make_dry_run
from coachrl.config import dump_config, load_config, with_absolute_paths
from coachrl.config.algorithm import own_keys
from coachrl.errors import CoachrlError, ConfigError
from coachrl.parsing import parse_yaml
from coachrl.prompts import load_prompt
from coachrl.resources import resource
from coachrl.seeding import generator
from coachrl.storage import files
from coachrl.storage.jsonl import read_jsonl
from coachrl.tasks.code.problems import COOP_CODE, load_code
from coachrl.tasks.records import read_source
from coachrl.tasks.tabular.dsbench import load_dsbench
from coachrl.tasks.tabular.dsbench_lite import ensure_dsbench_lite

CONFIGS = sorted(resource("configs").glob("*.yaml"))
# So that a mutation that loads is also cheap to try.
SMALL = ("tasks.train_count=2", "tasks.heldout_count=2", "train.steps=2")


def refusal(call, *arguments):
    """Why the call was refused, None where it was not. Any other exception is this test's failure."""
    try:
        call(*arguments)
    except CoachrlError as error:
        assert error.exit_code == 2, error
        assert len(str(error)) < 3000
        return str(error)
    return None


def use_config(path, overrides=()):
    """What `train --dry-run` and `train` do with a configuration before a model is loaded."""
    config = load_config(path, overrides)
    assert load_config_text(dump_config(with_absolute_paths(config))) is not None
    if config.tasks.source in ("word-problems", "math") and (config.tasks.train_count or 0) < 1000:
        make_dry_run(config)
    return config


def load_config_text(text):
    path = Path(load_config_text.folder) / "again.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    load_config_text.folder = tmp_path
    monkeypatch.chdir(tmp_path)


def test_damaged_overrides_are_refused_in_a_line():
    rng = generator(0, "overrides")
    keys = [*setting_keys(), *(f"algorithm.{key}" for key in own_keys("reinforce_pp"))]
    refused = [refusal(use_config, pick(rng, CONFIGS), [*SMALL, damaged_override(rng, keys)]) for _ in range(400)]
    assert 200 < sum(reason is not None for reason in refused) < 400


def test_damaged_configurations_are_refused_in_a_line(tmp_path):
    rng, path = generator(0, "configurations"), tmp_path / "damaged.yaml"
    refused = 0
    for _ in range(300):
        path.write_bytes(damaged_text(rng, pick(rng, CONFIGS).read_text(), VALUES))
        refused += refusal(use_config, path, SMALL) is not None
    assert 90 < refused < 300


def test_brackets_are_counted_before_they_are_looked_at_again_and_again(monkeypatch):
    """YAML's scanner looks at each that is open at every token: with thousands of them for seconds."""
    seen, scan = [], Scanner.fetch_flow_collection_start
    monkeypatch.setattr(Scanner, "fetch_flow_collection_start", lambda *given: seen.append(1) or scan(*given))
    with pytest.raises(ConfigError, match="nested deeper than 64 levels"):
        parse_yaml("[" * 3000, "here")
    assert len(seen) < 100
    assert parse_yaml("[" * 64 + "]" * 64, "here")


def test_damaged_prompts_are_refused_in_a_line(tmp_path):
    rng, path = generator(0, "prompts"), tmp_path / "damaged.md"
    coach, agents = (sorted(resource("prompts", part).rglob("*.md")) for part in ("coach", "agents"))
    refused = 0
    for prompts, load in ((coach, lambda file: load_coach_prompt(file, None)), (agents, load_prompt)):
        for _ in range(200):
            header, _, body = pick(rng, prompts).read_text().partition("\n---\n")
            path.write_bytes(damaged_text(rng, header, VALUES) + b"\n---\n" + body.encode())
            refused += refusal(load, path) is not None
    assert 100 < refused < 400


@pytest.fixture(scope="module")
def task_files(tmp_path_factory):
    """Name -> (text of a whole task file, what loads one)."""
    for package in ("bokeh_sampledata", "lifelines"):
        pytest.importorskip(package, reason="needs the tabular extra")
    root = ensure_dsbench_lite(tmp_path_factory.mktemp("cache"))
    problems = [{"id": n, "problem": f"{n} + 1?", "answer": n + 1, "level": 2, "source": "made"} for n in range(4)]
    prompts = root / "cleaned_prompts.json"
    entries = (root / "train.jsonl").read_text().splitlines()[:2]
    (first_two := root / "first_two.jsonl").write_text("\n".join(entries))
    declared = {name: entry for name, entry in json.loads(prompts.read_text()).items() if name in "".join(entries)}
    rows = "".join(f'{n},"{n} + 1, at once?",{n + 1},2,made\n' for n in range(4))
    return {
        "table.csv": (f"id,problem,answer,level,source\n{rows}", load_math),
        "list.json": (json.dumps(problems, indent=1), load_math),
        "lines.jsonl": ("".join(json.dumps(problem) + "\n" for problem in problems), load_math),
        "code.jsonl": ("\n".join(COOP_CODE.read_text().splitlines()[:3]), load_code),
        "dsbench.jsonl": ("\n".join(entries), lambda path: load_dsbench(root, path, prompts)),
        "prompts.json": (
            json.dumps(declared, indent=1),
            lambda path: load_dsbench(root, first_two, path),
        ),
    }


@pytest.mark.parametrize(
    "name", ["table.csv", "list.json", "lines.jsonl", "code.jsonl", "dsbench.jsonl", "prompts.json"]
)
def test_damaged_task_files_are_refused_in_a_line(task_files, tmp_path, name):
    text, load = task_files[name]
    rng, path = generator(0, name), tmp_path / name
    path.write_text(text)
    assert refusal(load, path) is None
    refused = 0
    for _ in range(200):
        path.write_bytes(damaged_text(rng, text, JSON_VALUES))
        refused += refusal(load, path) is not None
    assert refused > 50


def test_a_parquet_file_with_flipped_bits_is_refused_in_a_line(tmp_path):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    path, rng = tmp_path / "table.parquet", generator(0, "parquet")
    parquet.write_table(pyarrow.table({"id": ["a", "b"], "problem": ["1 + 1?", "2 + 1?"], "answer": [2, 3]}), path)
    data, refused = path.read_bytes(), 0
    assert refusal(load_math, path) is None
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(int(rng.integers(1, 6))):
            damaged[int(rng.integers(len(data)))] = int(rng.integers(256))
        path.write_bytes(damaged)
        refused += refusal(load_math, path) is not None
    assert refused > 100


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--dry-run", "tasks.train_count=2001-13-45"],
        ["train", "--dry-run", "pipeline.options={turns: !!binary /w==}"],
        ["train", "--dry-run", "seed=0x_"],
        ["train", "--dry-run", "pipeline.options=" + "[" * 3000],
        ["train", "--dry-run", "coach.prompt=" + "x" * 300],
        ["train", "--dry-run", 'out="a\\0b"'],
        ["train", "--dry-run", "seed=0x" + "f" * 5000],
        ["train", "-c", "x" * 5000],
        ["train", "-c", "latin1.yaml"],
        ["train", "-c", "laughs.yaml"],
        ["train", "--dry-run", "--name", "x" * 300, "--out", "y/" * 3000],
        ["train", "--resume", "x" * 300],
        ["train", "--name", "x" * 300],
        ["report", "x" * 5000],
        ["tasks", "list", "tasks.source=math", "tasks.train=deep.json", "tasks.heldout=deep.json"],
        ["tasks", "list", "tasks.source=code", "tasks.train=torn.jsonl.gz", "tasks.heldout=torn.jsonl.gz"],
        ["coaches", "show", "latin1.yaml"],
        ["coaches", "show", "x" * 300],
    ],
    ids=lambda arguments: " ".join(arguments)[:50],
)
def test_the_command_line_refuses_in_one_line(tmp_path, arguments):
    (tmp_path / "latin1.yaml").write_bytes("name: Grüße".encode("latin-1"))
    (tmp_path / "laughs.yaml").write_text(next(value for value in VALUES if value.startswith("{a: &a")))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-9])
    before = sorted(tmp_path.iterdir())
    done = coachrl(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-2000:]
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and sorted(tmp_path.iterdir()) == before


def test_lines_of_a_run_may_hold_half_a_character_and_no_nonsense(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "\\ud800"}\n')
    assert list(read_jsonl(path)) == [{"text": "\ud800"}]
    for odd in ("[" * 100_000, '{"n": ' + "9" * 5000 + "}", "\x00"):
        path.write_text(odd + "\n")
        with pytest.raises(ConfigError, match=r"lines\.jsonl, line 1: not JSON: "):
            list(read_jsonl(path))


def bound_socket(path):
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


def zeros(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("ending", [".json", ".csv", ".parquet", ".yaml", ".md"])
@pytest.mark.parametrize(
    ("make", "what"), [(os.mkfifo, "a named pipe"), (bound_socket, "a socket"), (zeros, "a device")]
)
def test_what_has_no_end_is_refused_before_it_is_read(tmp_path, make, what, ending):
    path = tmp_path / f"endless{ending}"
    made = make(path)
    load = {".yaml": load_config, ".md": load_prompt}.get(ending, lambda place: read_source(str(place)))
    assert f"it is {what}, where a file is needed" in refusal(load, path)
    del made


def test_a_file_of_more_than_is_read_is_refused_and_the_limit_can_be_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("COACHRL_MAX_FILE_MB", "1")
    for name, pack in (("problems.json", bytes), ("problems.json.gz", gzip.compress)):
        path = tmp_path / name
        path.write_bytes(pack(b" " * (1 << 20)))
        assert "it holds no problems" in refusal(load_math, path)
        path.write_bytes(pack(b" " * (1 << 20) + b" "))
        said = refusal(load_math, path)
        assert "of a file of 1 MiB; COACHRL_MAX_FILE_MB sets a higher limit" in said
        with monkeypatch.context() as more:
            more.setenv("COACHRL_MAX_FILE_MB", "2")
            assert "it holds no problems" in refusal(load_math, path)


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".csv", ".tsv", ".yaml", ".md"])
def test_a_file_of_a_terabyte_is_not_read(tmp_path, ending):
    path = tmp_path / f"large{ending}"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    load = {".yaml": load_config, ".md": load_prompt}.get(ending, lambda place: read_source(str(place)))
    assert "it has 1,099,511,627,776 bytes, more than is read" in refusal(load, path)


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"1\n", b",,,,,,,,,,,\n", b";\n", b"{}\n"])
def test_a_file_whose_values_take_more_than_memory_is_refused_before_they_are_made(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(files, "_MOST_VALUES", 1 << 16)
    monkeypatch.setenv("COACHRL_MAX_FILE_MB", "1")
    path = tmp_path / "small.json"
    path.write_bytes(piece * ((1 << 19) // len(piece)))
    assert "lines and values, more than is read of a file of 1 MiB" in refusal(load_math, path)


@pytest.mark.parametrize("given", ["", "0", "-1", "1e3", "many", "٣", "9" * 400])
def test_a_limit_on_files_that_is_none_is_named(tmp_path, monkeypatch, given):
    monkeypatch.setenv("COACHRL_MAX_FILE_MB", given)
    (tmp_path / "a.json").write_text("[]")
    assert "COACHRL_MAX_FILE_MB is" in refusal(load_math, tmp_path / "a.json")


def test_a_little_gzip_file_that_stands_for_gigabytes_is_refused_before_they_are_held(tmp_path):
    path = tmp_path / "problems.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 24)) * 64)
    most = max(1 << 26, 200 * path.stat().st_size)
    tracemalloc.start()
    assert f"it unpacks to more than {most:,} bytes" in refusal(load_math, path)
    assert tracemalloc.get_traced_memory()[1] < 700 << 20
    tracemalloc.stop()


def test_a_large_file_that_is_packed_as_files_are_is_read(tmp_path):
    """Text of which each line differs, more than is read of a small file."""
    path = tmp_path / "problems.jsonl.gz"
    lines = (f'{{"problem": "What is {n} + {n % 7}?", "answer": "{n + n % 7}"}}\n' for n in range(1_300_000))
    path.write_bytes(gzip.compress("".join(lines).encode(), 1))
    assert len(files.read_text(path, "problems")) > 1 << 26
    assert path.stat().st_size > 1 << 20


def test_a_parquet_file_of_pages_that_unpack_to_gigabytes_is_refused_before_they_are(tmp_path):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    path = tmp_path / "bomb.parquet"
    table = pyarrow.table({"problem": ["x" * (1 << 28)], "answer": ["1"]})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    assert path.stat().st_size < 1 << 20
    before = pyarrow.default_memory_pool().max_memory()
    del table
    assert "it unpacks to 268,4" in refusal(load_math, path)
    assert pyarrow.default_memory_pool().max_memory() == before


@pytest.mark.parametrize("place", ["/proc/self/environ", "/proc/self/pagemap"])
def test_what_the_kernel_shows_is_no_file(tmp_path, place):
    """Of some views nobody has seen the end, and to read others is to wait."""
    path = tmp_path / "problems.json"
    path.symlink_to(place)
    said = refusal(lambda place: read_source(str(place)), path)
    assert "it is a view of the kernel in /proc, where a file is needed" in said
