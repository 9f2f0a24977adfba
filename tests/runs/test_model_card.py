"""What the card beside saved weights says of them."""

import pytest
import yaml

from coachrl.config import load_config
from coachrl.runs.model_card import model_card
from coachrl.types import Role

ROLES = (Role("a", "p", description="First\nof all."), Role("b", "q"), Role("c", "p"))


def card(policy="q", step=4, metrics=(), overrides=()):
    text = model_card(policy, step, load_config(None, ["model=someone/small", *overrides]), "coach `x`", ROLES, metrics)
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


def evaluated(step, success, episodes=8):
    return {"step": step, "eval/success": success, "eval/episodes": episodes}


def test_it_names_the_roles_of_its_policy_the_step_and_what_it_was_trained_with():
    sizes = ("train.steps=9", "train.tasks_per_step=3", "train.group_size=2", "train.learning_rate=0.00002", "seed=5")
    body = card("p", overrides=sizes)[1]
    assert "The weights that `a`, `c` play with in the pipeline `mathchat`, after 4 of 9 training steps." in body
    assert "- **a**: First of all.\n- **c**: no description\n" in body and "**b**" not in body
    for line in (
        "learning rate | 2e-05",
        "episodes a step | 6",
        "seed | 5",
        "rewards | coach `x`",
        "tasks | `word-problems`",
    ):
        assert f"| {line} |" in body
    scheduled = card(overrides=[*sizes, "train.lr_schedule=cosine", "train.warmup_steps=3"])[1]
    assert "| learning rate | 2e-05, cosine, 3 steps of warm-up |" in scheduled
    assert "The weights that `b` plays with" in card()[1] and "The weights that z plays with" in card("z")[1]


@pytest.mark.parametrize(
    ("model", "base", "shown"),
    [
        ("someone/small", "someone/small", "someone/small"),
        ("smollm2-135m", None, "smollm2-135m"),
        ("/home/me/weights", None, "weights"),  # a folder of this machine means nothing elsewhere
        ("a/b/c", None, "a/b/c"),
    ],
)
def test_only_a_name_on_the_hub_is_a_base_model(model, base, shown):
    header, body = card(overrides=[f"policies.q.model={model}"])
    assert header.get("base_model") == base and f"| initial weights | `{shown}` |" in body


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        (
            [evaluated(0, 0.25), {"step": 1}, evaluated(2, 0.375), evaluated(4, 0.5), evaluated(5, 0.9)],
            [(0, 0.25), (4, 0.5)],
        ),
        ([evaluated(3, 0.25), evaluated(5, 0.9)], [(3, 0.25)]),
        ([evaluated(5, 0.9), {"step": 1}], []),
    ],
)
def test_success_is_that_before_training_and_the_last_of_these_weights(lines, rows):
    body = card(metrics=lines)[1]
    table = body.rpartition("|---|---|---|\n")[2].strip() if rows else ""
    assert table == "\n".join(f"| {step} | {success:.3f} | 8 |" for step, success in rows)
    assert ("No held-out evaluation was made" in body) is (not rows)


def test_its_header_says_how_the_hub_lists_it_and_where_figures_come_from():
    header, body = card(metrics=[{"step": 2, "eval/success": 0.0}])
    assert header["library_name"] == "transformers" and header["tags"][0] == "coachrl"
    assert body.rstrip().endswith("| step | success | episodes |\n|---|---|---|\n| 2 | 0.000 | 0 |")
    assert "| algorithm | `reinforce_pp` |" in body and "\n| | |\n|---|---|\n| initial weights |" in body
