"""Writes the launch file of a run for a cluster: Slurm, SkyPilot or Kubernetes with KubeRay.

    python scripts/launch/render.py slurm --nodes 2 --gpus 8 --config mathchat_8gpu --run /shared/runs/mathchat \\
        tasks.train=/shared/train.json tasks.heldout=/shared/test.json > job.sh
    mkdir -p /shared/runs && sbatch job.sh

    python scripts/launch/render.py skypilot --image me/coachrl-cuda --storage s3://bucket …  > run.yaml
    python scripts/launch/render.py kuberay --image me/coachrl-cuda --storage volume-claim …  > run.yaml

The run's folder lies on storage that all machines share, at the same path. A run that is there already goes on from its
last checkpoint, so the same file starts and continues it. With Slurm, coachrl is on the path of all nodes (activate its
environment before sbatch); the others take an image, as of docker/cuda.Dockerfile.
"""

from __future__ import annotations

import argparse
import re
import shlex
import string
import sys
from pathlib import Path

RAY = "2.55.0"  # as the extra `openrlhf` pins it
JOIN_S = 600

_TRAIN = """\
if [ -e {run}/config.yaml ]; then
  set -- --resume {run}
else
  set -- --config {config} --out {out} --name {name}{overrides}
fi
{exec}coachrl train "$@" train.notice_file={run}.notice ${{address:+"openrlhf.ray_address=$address"}}"""

_WAIT = """\
python - "$address" "${variable}" <<'PYTHON'
import sys, time
import ray
address, wanted = sys.argv[1], int(sys.argv[2])
deadline, names = time.monotonic() + {join_s}, []
while len(names) < wanted:
    if time.monotonic() > deadline:
        sys.exit(f"only {{len(names)}} of {{wanted}} nodes joined Ray in {join_s} s: {{', '.join(names) or 'none'}}")
    try:
        ray.init(address, logging_level="ERROR", log_to_driver=False)
        names = [node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]]
        ray.shutdown()
    except (ConnectionError, RuntimeError, ValueError):
        pass
    time.sleep(1)
PYTHON"""


class _Template(string.Template):
    delimiter = "%%"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("slurm", "skypilot", "kuberay"))
    parser.add_argument("--config", required=True, help="a shipped configuration, or a file that all machines see")
    parser.add_argument("--run", required=True, help="the run's folder, on storage that all machines share")
    parser.add_argument("--nodes", type=_count, default=1)
    parser.add_argument("--gpus", type=_count, default=8, help="of each node (default: 8)")
    parser.add_argument("--cpus", type=_count, default=64, help="processor cores of each node (default: 64)")
    parser.add_argument("--image", help="skypilot, kuberay: a container image with coachrl")
    parser.add_argument(
        "--storage", help="skypilot: a bucket; kuberay: a volume claim. It holds the run's parent folder"
    )
    parser.add_argument("--gpu-type", default="H100", help="skypilot: the accelerator's name (default: H100)")
    parser.add_argument("--memory", default="1000Gi", help="kuberay: of each pod (default: 1000Gi)")
    parser.add_argument("--time", default="24:00:00", help="slurm: time limit of a job (default: 24:00:00)")
    parser.add_argument("--notice-s", type=_count, default=600, help="seconds to write a checkpoint in (default: 600)")
    # SkyPilot's own Ray has 6380, and many machines have one at 6379.
    parser.add_argument("--port", type=_port, default=6390, help="of Ray's head (default: 6390)")
    parser.add_argument("overrides", nargs="*", help="settings of the run as key=value")
    args = parser.parse_intermixed_args(words)
    run = Path(args.run)
    if not run.is_absolute() or not re.fullmatch(r"[\w./-]+", args.run):
        parser.error(f"--run {args.run!r}: the run's folder is an absolute path of letters, digits and . _ - /")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", run.name):
        parser.error(f"--run: {run.name!r} names the job too: at most 42 small letters, digits and -")
    if wrong := [given for given in args.overrides if "=" not in given]:
        parser.error(f"{wrong[0]!r} is no setting: key=value is one")
    if args.kind != "slurm" and (missing := [f"--{name}" for name in ("image", "storage") if not getattr(args, name)]):
        parser.error(f"{args.kind} needs {' and '.join(missing)}")
    for name in ("image", "storage", "gpu_type", "memory", "time"):
        if not re.fullmatch(r"[\w./:@-]*", getattr(args, name) or ""):
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)!r}: letters, digits and . _ - / : @ alone")
    return args


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to 65535")
    return int(text)


def render(args: argparse.Namespace) -> str:
    """The launch file."""
    run = Path(args.run)
    # The distributed backend fills what it is given; on one node a configuration says itself how many GPUs it takes.
    given = [*([f"openrlhf.gpus={args.nodes * args.gpus}"] if args.nodes > 1 else []), *args.overrides]
    words = {"run": args.run, "out": str(run.parent), "name": run.name, "config": shlex.quote(args.config)}
    overrides = "".join(f" {shlex.quote(word)}" for word in given)
    variable = "SLURM_JOB_NUM_NODES" if args.kind == "slurm" else "SKYPILOT_NUM_NODES"
    # Slurm's signal goes to the process itself, so no shell may stand before it.
    train = _TRAIN.format(overrides=overrides, exec="exec " if args.kind == "slurm" else "", **words)
    wait = _WAIT.format(variable=variable, join_s=JOIN_S)
    if args.kind == "slurm":
        values = {"train": f"{{\n{_indented(train, 2)}\n}}", "wait": wait}
    elif args.kind == "skypilot":
        values = {"train": _indented(train, 2), "wait": _indented(wait, 2)}
    else:
        values = {"train": _indented(train, 4), "workers": _workers(args.nodes - 1, args.gpus)}
    suffix = "sh" if args.kind == "slurm" else "yaml"
    template = _Template((Path(__file__).parent / f"{args.kind}.{suffix}").read_text(encoding="utf-8"))
    return template.substitute(vars(args) | {"ray": RAY} | words | values)


def _workers(count: int, gpus: int) -> str:
    """Of the pod that the head has too."""
    if not count:
        return "[]"
    group = (
        "- groupName: workers",
        f"  replicas: {count}",
        f"  minReplicas: {count}",
        f"  maxReplicas: {count}",
        f'  rayStartParams: {{num-gpus: "{gpus}"}}',
        "  template: *pod",
    )
    return "\n" + "\n".join(" " * 6 + line for line in group)


def _indented(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.splitlines())


if __name__ == "__main__":
    sys.stdout.write(render(arguments()))
