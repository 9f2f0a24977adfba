"""A real run of TRL's GRPOTrainer whose reward is audited: two steps of a tiny random model, on the CPU, offline.

    python -m venv /tmp/trlenv && /tmp/trlenv/bin/pip install trl torch pyarrow
    /tmp/trlenv/bin/pip install -e .
    /tmp/trlenv/bin/python scripts/trl_audit.py /tmp/trl-audit

It writes scores.jsonl by `coachrl.audit.trl.audited`, and TRL its own Parquet tables beside it; both can be audited:

    coachrl audit --from trl /tmp/trl-audit/scores.jsonl
    coachrl audit --from trl /tmp/trl-audit/completions/completions_00002.parquet --column score=likes_length
"""

from __future__ import annotations

import sys
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from coachrl.audit.trl import audited

WORDS = ("<pad>", "<end>", *map(str, range(20)), "+", "=", "apples", "pears", "and", "is")


def likes_length(completions: list[str], **given: object) -> list[float]:
    return [min(1.0, len(text.split()) / 12) for text in completions]


def is_right(completions: list[str], answer: list[str], **given: object) -> list[float]:
    return [float(right in text.split()) for text, right in zip(completions, answer, strict=True)]


def main(folder: Path) -> None:
    tokens = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<end>")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=64,
                                       bos_token_id=1, eos_token_id=1, pad_token_id=0))  # fmt: skip
    rows = [
        {"prompt": f"{a} + {b} {things} is", "answer": str(a + b), "subject": things}
        for a in range(1, 5)
        for b in range(1, 5)
        for things in ("apples", "pears")
    ]
    arguments = GRPOConfig(output_dir=str(folder), max_steps=2, per_device_train_batch_size=16, num_generations=4,
                           max_completion_length=16, logging_steps=1, log_completions=True, report_to=[], use_cpu=True,
                           bf16=False, save_strategy="no", seed=0)  # fmt: skip
    judge = audited(likes_length, folder / "scores.jsonl", outcome=is_right, category="subject", every=1)
    trainer = GRPOTrainer(model=model, reward_funcs=[judge], args=arguments, train_dataset=Dataset.from_list(rows),
                          processing_class=tokenizer)  # fmt: skip
    trainer.train()
    for entry in trainer.state.log_history:
        print({name: value for name, value in entry.items() if "audit" in name or name in ("step", "reward")})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
