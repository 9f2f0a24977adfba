from __future__ import annotations

import math
import os
import resource

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from coachrl.config import SftConfig, TorchConfig
from coachrl.errors import ConfigError, PolicyError, TaskError
from coachrl.trainers.backends.torch import sft
from coachrl.trainers.backends.torch.models.tiny_random import tiny_random_folder
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.backends.torch.policy import TrainablePolicy
from coachrl.trainers.backends.torch.sft import (
    _batches,
    _split,
    encode_conversation,
    learning_rate_at,
    load_conversations,
    run_sft,
)

FAST = SftConfig(
    epochs=3,
    learning_rate=5e-3,
    batch_size=8,
    max_length=120,
    validation_share=0.2,
    log_every=5,
    torch=TorchConfig(device="cpu"),
)


USER = {"role": "user", "content": "hi"}
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return ChatTokenizer(tiny_model)


def conversation(*turns, system=None):
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
    return {"messages": [{"role": "system", "content": system}, *messages] if system else messages}


def demonstrations(count):
    return [conversation(f"say {i % 7}", f"it is {i % 7}") for i in range(count)]


def test_only_the_assistants_tokens_are_learned(tokenizer):
    record = conversation("hi", "one", "and?", "two", system="count")
    sample = encode_conversation(record["messages"], tokenizer, "line 1")
    ids = np.concatenate([sample.prompt_ids_P, sample.response_ids_L]).tolist()
    assert tokenizer._tokenizer.decode(ids) == (
        "<|start|>system\ncount<|end|>\n<|start|>user\nhi<|end|>\n<|start|>assistant\none<|end|>\n"
        "<|start|>user\nand?<|end|>\n<|start|>assistant\ntwo<|end|>"
    )
    learned = sample.response_ids_L[sample.mask_L > 0].tolist()
    assert learned == [*tokenizer.encode_reply("one"), *tokenizer.encode_reply("two")]


def test_of_a_prompt_and_its_completion_the_completion_alone_is_learned(tokenizer, write_jsonl):
    """The agent has read the same, and what it wrote in an earlier turn may be what it must not learn."""
    messages = conversation("hi", "one", "and?", "two", system="count")["messages"]
    path = write_jsonl({"messages": messages}, {"prompt": messages[:-1], "completion": messages[-1:], "score": 9.0})
    whole, asked = load_conversations(path, tokenizer, 100)
    ids = [np.concatenate([sample.prompt_ids_P, sample.response_ids_L]).tolist() for sample in (whole, asked)]
    assert ids[0] == ids[1] and (whole.mask_L > 0).sum() > (asked.mask_L > 0).sum()
    assert asked.response_ids_L[asked.mask_L > 0].tolist() == [*tokenizer.encode_reply("two")]


def test_the_model_learns_and_the_folder_loads(tiny_model, tmp_path, write_jsonl):
    lines = []
    stats = run_sft(write_jsonl(*demonstrations(40)), tiny_model, tmp_path / "out", FAST, lines.append)
    assert stats["validation_loss"] < stats["validation_loss_before"] - 0.5
    assert (stats["steps"], stats["conversations"], stats["held_out"], stats["skipped"]) == (12, 32, 8, 0)
    assert [line.split("  ")[0] for line in lines[:-1]] == ["step 5/12", "step 10/12", "step 12/12"]
    assert lines[-1].startswith("validation loss")
    assert ChatTokenizer(tmp_path / "out").encode_chat([{"role": "user", "content": "x"}])
    again = run_sft(write_jsonl(*demonstrations(40)), tmp_path / "out", tmp_path / "more", FAST, lines.append)
    assert again["validation_loss_before"] == pytest.approx(stats["validation_loss"], abs=0.02)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "more", "out"]  # nothing left aside


def test_the_seed_fixes_the_run(tiny_model, tmp_path, write_jsonl):
    data = write_jsonl(*demonstrations(16))
    runs = [run_sft(data, tiny_model, tmp_path / name, FAST, lambda line: None) for name in ("a", "b")]
    assert runs[0] == runs[1]


def test_figures_of_a_run_are_of_its_last_steps_and_what_was_skipped_is_summed(
    tiny_model, tmp_path, write_jsonl, monkeypatch
):
    rates, sizes, lines = [], [], []

    def trained(policy, samples):
        rates.append(policy._optimizer.param_groups[0]["lr"])
        sizes.append(len(samples))
        return {"loss": float(len(sizes)), "skipped": float(len(sizes) == 2)}

    monkeypatch.setattr(TrainablePolicy, "train", trained)
    stats = run_sft(write_jsonl(*demonstrations(25)), tiny_model, tmp_path / "out", FAST, lines.append)
    assert sizes == [8, 8, 4] * 3 and rates == [learning_rate_at(step, 9, FAST) for step in range(9)]
    assert (stats["train_loss"], stats["skipped"], stats["steps"]) == (np.mean([5, 6, 7, 8, 9]), 1.0, 9.0)
    assert lines[:2] == ["step 5/9  loss 3.0000", "step 9/9  loss 7.0000"]
    assert stats["validation_loss"] == stats["validation_loss_before"]


def test_a_conversation_as_long_as_the_limit_is_taken(tokenizer, write_jsonl):
    path = write_jsonl(conversation("a", "b"))
    [sample] = load_conversations(path, tokenizer, max_length=10_000)
    assert len(load_conversations(path, tokenizer, sample.length)) == 1
    with pytest.raises(TaskError, match=f"{sample.length} tokens, and the limit is {sample.length - 1}"):
        load_conversations(path, tokenizer, sample.length - 1)


def test_the_learning_rate_rises_and_falls():
    settings = SftConfig(learning_rate=1.0, warmup_share=0.2)
    rates = [learning_rate_at(step, 10, settings) for step in range(10)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    assert learning_rate_at(0, 1, SftConfig(learning_rate=1.0, warmup_share=0.0)) == 1.0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "at least one message"),
        ({"messages": []}, "at least one message"),
        ({"prompt": "x"}, "at least one message"),
        ({"prompt": [USER], "completion": "x"}, "with one message to complete"),
        ({"prompt": [USER], "completion": []}, "with one message to complete"),
        ({"completion": [USER]}, "with one message to complete"),
        ({"prompt": [USER], "completion": [USER]}, "must begin with a prompt"),
        ({"messages": [{"role": "user"}]}, "a role and a content"),
        ({"messages": ["hi"]}, "a role and a content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "'robot'"),
        (conversation("only a question"), "must begin with a prompt"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "must begin with a prompt"),
        (conversation("a", "b", "c"), "the last message must be the assistant's"),
        ({"messages": [*conversation("a", "b")["messages"], *conversation("a", "b")["messages"][1:]]}, "take turns"),
        (conversation("long " * 40, "x"), "and the limit is 120"),
        (
            {"messages": [USER, {**CALLS, "content": "", "reasoning": "so"}]},
            "a message has tool_calls, reasoning; only",
        ),
    ],
)
def test_a_bad_line_is_named(tokenizer, write_jsonl, line, reason):
    path = write_jsonl(conversation("a", "b"), "", line)
    with pytest.raises(TaskError, match=reason) as caught:
        load_conversations(path, tokenizer, max_length=120)
    assert f"{path}, line 3" in str(caught.value)


def test_fields_of_a_message_that_hold_nothing_are_none(tokenizer, write_jsonl):
    path = write_jsonl({"messages": [{**USER, "name": None}, {"role": "assistant", "content": "b", "tool_calls": []}]})
    assert len(load_conversations(path, tokenizer, 120)) == 1


def test_a_file_without_conversations(tokenizer, write_jsonl, tmp_path):
    with pytest.raises(TaskError, match="no conversation"):
        load_conversations(write_jsonl(""), tokenizer, 100)
    with pytest.raises(TaskError, match="No such file"):
        load_conversations(tmp_path / "missing.jsonl", tokenizer, 100)


def test_one_conversation_cannot_be_held_out_and_trained_on(tiny_model, tmp_path, write_jsonl):
    data = write_jsonl(*demonstrations(1))
    with pytest.raises(TaskError, match="nothing is left to train on"):
        run_sft(data, tiny_model, tmp_path / "out", FAST, lambda line: None)
    everything = SftConfig(validation_share=0.0, torch=TorchConfig(device="cpu"))
    stats = run_sft(data, tiny_model, tmp_path / "out", everything, lambda line: None)
    assert math.isnan(stats["validation_loss"])


@pytest.mark.parametrize(("share", "count", "held_out"), [(0.05, 4, 1), (0.25, 10, 2), (0.3, 10, 3), (0.0, 10, 0)])
def test_one_conversation_at_least_is_held_out_and_none_is_in_both_parts(share, count, held_out):
    training, validation = _split(list(range(count)), SftConfig(validation_share=share))
    assert len(validation) == held_out and sorted(training + validation) == list(range(count))


def test_each_epoch_is_its_own_shuffle_of_all_conversations():
    batches = [batch.tolist() for batch in _batches(7, SftConfig(epochs=2, batch_size=3))]
    assert [len(batch) for batch in batches] == [3, 3, 1, 3, 3, 1]
    first, second = ([place for batch in half for place in batch] for half in (batches[:3], batches[3:]))
    assert sorted(first) == sorted(second) == list(range(7)) and first != second


def test_nothing_is_written_over_or_left_behind(tiny_model, tmp_path, write_jsonl):
    data = write_jsonl(*demonstrations(10))
    (tmp_path / "link").symlink_to("nowhere")
    for there in (tmp_path, tmp_path / "link"):
        with pytest.raises(ConfigError, match="exists already"):
            run_sft(data, tiny_model, there, FAST, lambda line: None)
    (tmp_path / "link").unlink()

    def interrupted(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sft(data, tiny_model, tmp_path / "out", FAST, interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]
    with pytest.raises(ConfigError, match="cannot be written"):
        run_sft(data, tiny_model, data / "out", FAST, lambda line: None)


@pytest.mark.parametrize("share", [0.2, 0.0])
def test_a_model_that_computes_no_numbers_any_more_is_not_written(tiny_model, tmp_path, write_jsonl, share):
    settings = FAST.model_copy(update={"learning_rate": 1e38, "validation_share": share, "epochs": 1})
    with pytest.raises(PolicyError, match="take a smaller learning rate"):
        run_sft(write_jsonl(*demonstrations(8)), tiny_model, tmp_path / "out", settings, lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


def test_where_no_step_is_taken_nothing_is_written(tiny_model, tmp_path, write_jsonl, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(math.nan))
    with pytest.raises(PolicyError, match="no step was taken"):
        run_sft(write_jsonl(*demonstrations(8)), tiny_model, tmp_path / "out", FAST, lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


def test_a_folder_that_is_being_trained_into_is_refused_at_once(tiny_model, tmp_path, write_jsonl):
    data, out, told = write_jsonl(*demonstrations(10)), tmp_path / "new" / "out", []

    def meanwhile(line):
        with pytest.raises(ConfigError, match=rf"new/out is in use by process {os.getpid()} .*, training since"):
            run_sft(data, tiny_model, out, FAST, told.append)

    run_sft(data, tiny_model, out, FAST, meanwhile)
    assert told == [] and [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_folder_that_another_process_made_while_the_model_was_loaded_is_refused_before_training(
    tiny_model, tmp_path, write_jsonl, monkeypatch
):
    data, out, told = write_jsonl(*demonstrations(10)), tmp_path / "out", []
    load = sft._policy
    monkeypatch.setattr(sft, "_policy", lambda *given: (out.mkdir(), load(*given))[1])
    with pytest.raises(ConfigError, match="out exists already"):
        run_sft(data, tiny_model, out, FAST, told.append)
    assert told == [] and sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "out"]


def test_a_folder_that_another_process_made_meanwhile_stays_and_is_named(tiny_model, tmp_path, write_jsonl):
    data, out = write_jsonl(*demonstrations(10)), tmp_path / "out"

    def meanwhile(_):
        out.mkdir(exist_ok=True)
        (out / "theirs").touch()

    with pytest.raises(ConfigError, match=r"out: cannot be written \(Directory not empty"):
        run_sft(data, tiny_model, out, FAST, meanwhile)
    assert [path.name for path in out.iterdir()] == ["theirs"] and not list(tmp_path.glob(".out.*"))


def test_what_ends_the_lines_of_progress_is_no_fault_of_the_folder(tiny_model, tmp_path, write_jsonl):
    """Their reader may go away, as `head` does."""

    def closed(line):
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        run_sft(write_jsonl(*demonstrations(10)), tiny_model, tmp_path / "out", FAST, closed)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


def test_a_step_of_which_nothing_fits_into_memory_is_one_line_and_leaves_nothing(
    tiny_model, tmp_path, write_jsonl, monkeypatch
):
    def fails(*_):
        raise torch.OutOfMemoryError("scripted")

    monkeypatch.setattr(TrainablePolicy, "_forward", fails)
    with pytest.raises(PolicyError, match="step 1: none of its 8 conversations fits into memory: shorten them"):
        run_sft(write_jsonl(*demonstrations(10)), tiny_model, tmp_path / "out", FAST, lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


@pytest.mark.parametrize("room_bytes", [3000, 20_000], ids=["settings or tokenizer", "weights"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tiny_model, tmp_path, write_jsonl, room_bytes):
    """RLIMIT_FSIZE stands for the disk: a write past it fails half-way, as on a disk that is full."""
    data = write_jsonl(*demonstrations(4))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"out: cannot be written \(File too large\)"):
            run_sft(data, tiny_model, tmp_path / "out", FAST, lambda line: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


@pytest.mark.parametrize("room_bytes", [1000, 20_000], ids=["tokenizer", "weights"])
def test_a_cache_without_room_for_a_model_is_one_line_and_holds_nothing(tmp_path, monkeypatch, room_bytes):
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, limits[1]))
    try:
        with pytest.raises(PolicyError, match=r"cannot write model tiny-random .*: File too large; set COACHRL_CACHE"):
            tiny_random_folder()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "models").iterdir())
