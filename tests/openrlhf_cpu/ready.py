"""Imported by the process that Ray's workers and command lines are forked from: all that is heavy, made ready for CPU.

Ray itself is left to them: it reads its environment, which tells a worker its job, when it is imported.
"""

import sys
from importlib import import_module

import openrlhf_cpu

USED = (
    "litellm",
    "peft",
    "coachrl.cli.main",
    "coachrl.commands.run",
    "coachrl.trainers.backends.torch.backend",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.qwen2",
)

import_module("setproctitle").getproctitle()  # it looks for the place of a name before the environment is another
sys.modules["ray"] = None  # vLLM does without where there is none
openrlhf_cpu.install()
for name in USED:
    import_module(name)
del sys.modules["ray"]
