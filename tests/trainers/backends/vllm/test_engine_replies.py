"""What is read of an engine's answers, and which models may share an engine: without vLLM."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from tiny_models import write_tiny_model

from coachrl.errors import BackendError, ConfigError, PolicyError
from coachrl.trainers.backends.vllm.replies import (
    Growing,
    LogitsNotFinite,
    Reply,
    generation,
    growing,
    new_ones,
    read_reply,
)
from coachrl.trainers.backends.vllm.shapes import check_shapes
from coachrl.types import SamplingParams


def output(ids, reason, logprobs=(-0.5, -0.25), told=None):
    """As one of vLLM's `RequestOutput`s."""
    flat = SimpleNamespace(token_ids=list(ids if told is None else told), logprobs=list(logprobs))
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=list(ids), finish_reason=reason, logprobs=flat)])


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_reply_is_its_tokens_with_their_log_probabilities_and_why_it_ended(reason):
    assert read_reply(output([3, 4], reason)) == Reply((3, 4), (-0.5, -0.25), reason)
    assert growing(output([3], None)) == Growing((3,))


@pytest.mark.parametrize(("temperature", "logprobs"), [(0.0, (0.0, 0.0)), (0.5, (-0.5, -0.25))])
def test_a_token_that_is_not_drawn_but_taken_is_certain_as_the_embedded_engine_says(temperature, logprobs):
    drawn = generation(Reply((3, 4), (-0.5, -0.25), "stop"), SamplingParams(temperature=temperature), 7)
    assert (drawn.token_ids, drawn.logprobs, drawn.weights_version) == ((3, 4), logprobs, 7)


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_a_reply_that_neither_the_model_nor_a_limit_ended_is_none(reason):
    with pytest.raises(BackendError, match=f"vLLM ended a reply with {reason!r}"):
        read_reply(output([3, 4], reason))


def test_log_probabilities_of_other_tokens_are_refused():
    with pytest.raises(BackendError, match="of other tokens than those that it drew"):
        read_reply(output([3, 4], "stop", told=[3, 5]))


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), float("inf")])
def test_what_is_drawn_from_logits_that_are_no_numbers_is_no_reply(logprob):
    with pytest.raises(LogitsNotFinite, match="log-probabilities are no numbers"):
        read_reply(output([3, 4], "stop", logprobs=(-0.5, logprob)))


def test_a_reply_that_grows_by_several_tokens_at_once_is_told_token_by_token():
    told = []
    tell = new_ones(told.append)
    for length in (1, 4, 4, 6):
        tell((7, 7, 8, 9, 9, 2)[:length])
    assert told == [7, 7, 8, 9, 9, 2]


@pytest.fixture
def folders(tmp_path):
    """Of equal shape, the second with another dtype and end of turn; and one with another width."""
    for name in ("a", "b", "wide"):
        write_tiny_model(tmp_path / name)
    for name, changes in {"b": {"dtype": "bfloat16", "eos_token_id": 9}, "wide": {"intermediate_size": 97}}.items():
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return tmp_path


def test_models_of_one_shape_take_turns_in_one_engine_and_others_do_not(folders):
    check_shapes([folders / "a"])
    check_shapes([folders / "a", folders / "b", folders / "a"])
    with pytest.raises(ConfigError, match="differ in intermediate_size and cannot take turns"):
        check_shapes([folders / "a", folders / "b", folders / "wide"])


def test_a_setting_that_one_of_two_models_alone_has_is_a_difference(folders):
    path = folders / "b" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attn_logit_softcapping": 30.0}))
    for pair in (("a", "b"), ("b", "a")):
        with pytest.raises(ConfigError, match="differ in attn_logit_softcapping and cannot take turns"):
            check_shapes([folders / name for name in pair])


def test_one_base_is_one_model(folders):
    check_shapes([folders / "a", folders / "a"], share_base=True)
    with pytest.raises(ConfigError, match="are two models, and the engine keeps one frozen base"):
        check_shapes([folders / "a", folders / "b"], share_base=True)


def test_a_config_that_cannot_be_read_is_named(folders):
    (folders / "b" / "config.json").write_text("{")
    with pytest.raises(PolicyError, match=r"b: its config\.json cannot be read"):
        check_shapes([folders / "a", folders / "b"])
