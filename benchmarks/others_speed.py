"""Generation of TRL or vLLM on the workload of `embedded_speed.py`, which runs this with the Python of an environment
that has them: `others_speed.py {trl,vllm} MODEL_FOLDER WORKLOAD`. Needs no coachrl. Prints one JSON object,
rows -> tokens/s, for TRL with the tokens/s of the rest of its step under "update".
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPEATS = 3


def vllm(folder: str, workload: dict[str, Any]) -> dict[str, float]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    engine = LLM(folder, dtype="bfloat16", max_model_len=1024, enable_prefix_caching=True, max_num_seqs=256)
    new = workload["new_tokens"]
    params = SamplingParams(max_tokens=new, min_tokens=new, ignore_eos=True, logprobs=0, detokenize=False)
    rates = {}
    for rows, prompts in workload["prompts"].items():
        given = [{"prompt_token_ids": ids} for ids in prompts]
        times = []
        for _ in range(REPEATS):
            engine.reset_prefix_cache()
            began = time.perf_counter()
            engine.generate(given, params, use_tqdm=False)
            times.append(time.perf_counter() - began)
        rates[rows] = len(prompts) * new / min(times)
    return rates


def trl(folder: str, workload: dict[str, Any]) -> dict[str, float]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    new, prompts = workload["new_tokens"], workload["prompts"]["32"]
    rows = len(prompts)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [tokenizer.decode(ids) for ids in prompts[: rows // 2]] * 2 * REPEATS
    generating: list[float] = []
    whole: list[float] = []

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = super()._generate(*args, **kwargs)
            generating.append(time.perf_counter() - began)
            return result

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = super().training_step(*args, **kwargs)
            whole.append(time.perf_counter() - began)
            return result

    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            use_cpu=True,
            bf16=True,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=1,
            num_generations=2,
            max_completion_length=new,
            max_steps=REPEATS,
            learning_rate=1e-6,
            beta=0.0,
            report_to=[],
            save_strategy="no",
            generation_kwargs={"min_new_tokens": new},
            gradient_checkpointing=False,
        )
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            reward_funcs=lambda completions, **kwargs: [float(i % 2) for i in range(len(completions))],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=tokenizer,
        )
        trainer.train()
    updates = [step - generation for step, generation in zip(whole, generating, strict=True)]
    tokens = sum(map(len, prompts)) + rows * new
    return {"32": rows * new / min(generating), "update": tokens / min(updates)}


if __name__ == "__main__":
    program, folder, workload_path = sys.argv[1:]
    workload = json.loads(Path(workload_path).read_text(encoding="utf-8"))
    measured = {"trl": trl, "vllm": vllm}[program](folder, workload)
    print(json.dumps(measured))
