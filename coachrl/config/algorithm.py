"""The algorithm's section: which one trains, and the settings of that one alone.

Every algorithm brings a section class of its own (`Algorithm.Config`), so that a setting exists only where its
algorithm is chosen. The class is found by `algorithm.name`: in the table below, or by import path.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from inspect import isabstract
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from coachrl.config.called_elsewhere import ALGORITHMS, behind, meant_by
from coachrl.config.choices import check_plain, check_takes, find_class, user_code
from coachrl.config.section import Section
from coachrl.errors import ConfigError
from coachrl.text import brief, nearest

SHIPPED = {
    "reinforce_pp": "coachrl.trainers.algorithms.reinforce_pp:ReinforcePP",
    "retrospective": "coachrl.trainers.algorithms.retrospective:Retrospective",
    "grpo": "coachrl.trainers.algorithms.grpo:GRPO",
    "at_grpo": "coachrl.trainers.algorithms.at_grpo:ATGRPO",
    "magrpo": "coachrl.trainers.algorithms.magrpo:MAGRPO",
    "counterfactual": "coachrl.trainers.algorithms.counterfactual:Counterfactual",
    "outcome": "coachrl.trainers.algorithms.outcome:Outcome",
}
"""A new algorithm is one file and one line here."""

Loss = Literal["ppo", "policy_gradient"]
Scheme = Literal["parallel", "tree"]
_METHODS = {
    "advantages": ("samples", "rewards"),
    "check": ("config",),
    "check_pipeline": ("pipeline",),
    "rewards": ("episode", "scores", "reward"),
    "tasks_to_compare": ("samples", "rewards"),
    "state": (),
    "restore": ("state",),
}
"""What a run calls of an algorithm, and with what."""

DEFAULT = "reinforce_pp"
WHOLE_SENTENCE = "whole_sentence"
"""The type of errors whose message says it all: of a key that the chosen algorithm does not have, and of a name or
import path that stands for no algorithm."""


class AlgorithmConfig(Section):
    """The settings of an algorithm; each one's class adds its own keys."""

    name: str = Field(
        DEFAULT,
        description="How rewards become advantages: a shipped one (docs/algorithms.md compares them), or "
        "my_package.my_module:MyAlgorithm.",
    )


class SavedAlgorithmConfig(AlgorithmConfig):
    """The settings of an algorithm of the user's own as a run's folder holds them. Its code is looked at by what trains
    with it; what only reads the run does without, since it may lie in another folder, or be of somebody else."""

    model_config = ConfigDict(extra="allow")


SAVED = {"saved": True}
"""The validation context of a configuration that is read from a run's folder."""


def algorithm_label(settings: AlgorithmConfig) -> str:
    """An algorithm for people: one of the user's own, whose defaults no page lists, with its settings."""
    own = settings.model_dump(mode="json", exclude={"name"}) if settings.name not in SHIPPED else {}
    shown = ", ".join(f"{key}={value}" for key, value in own.items())
    return f"{settings.name} ({shown})" if shown else settings.name


def find_algorithm(name: str) -> Any:
    """The class of the algorithm `name`, a subclass of `coachrl.trainers.algorithms.base.Algorithm`. Raises ConfigError
    for an unknown name, and for what is no algorithm."""
    example = "my_package.my_module:MyAlgorithm"
    if name not in SHIPPED and (meant := ALGORITHMS.get(name.lower())):
        raise ConfigError(f"no algorithm '{name}': {meant} (docs/algorithms.md)")
    found = find_class("algorithm", name, SHIPPED, example)
    base = find_class("class", "coachrl.trainers.algorithms.base:Algorithm", {}, example)
    fits = isinstance(found, type) and issubclass(found, base) and not isabstract(found)
    if not fits:
        raise ConfigError(
            f"algorithm '{name}' is no algorithm: it must be a subclass of coachrl.trainers.algorithms.base.Algorithm "
            "that says how advantages are made"
        )
    if not (isinstance(found.Config, type) and issubclass(found.Config, AlgorithmConfig)):
        raise ConfigError(
            f"algorithm '{name}': its Config must be a subclass of AlgorithmConfig (coachrl.trainers.algorithms.base)"
        )
    if name not in SHIPPED:
        _check_own(found, name)
        _check_spelling(found, base, name)
    return found


def _check_own(found: Any, name: str) -> None:
    """Raises ConfigError where a class of the user's own declares what no run can use."""
    for method, arguments in _METHODS.items():
        function = getattr(found, method)
        check_takes(function, ("self", *arguments), f"algorithm '{name}': its {method}")
        check_plain(function, f"algorithm '{name}': its {method}")
    check_takes(found.explore, ("self", "episodes", "specs", "context"), f"algorithm '{name}': its explore")
    for attribute, known in (("loss", get_args(Loss)), ("scheme", get_args(Scheme))):
        value = getattr(found, attribute)
        if value not in known:
            raise ConfigError(
                f"algorithm '{name}': its {attribute} is {brief(value)}{nearest(str(value), known)} "
                f"(one of {', '.join(known)})"
            )
    if not isinstance(found.min_group_size, int) or found.min_group_size < 1:
        raise ConfigError(f"algorithm '{name}': its min_group_size must be a whole number, 1 or more")


def _check_spelling(found: type, base: type, name: str) -> None:
    """Raises ConfigError for an attribute that is nearly what an algorithm may declare: nobody would ever read it."""
    known = [attribute for attribute, value in vars(base).items() if attribute[0] != "_" and not callable(value)]
    given = [
        attribute
        for parent in found.__mro__
        for attribute, value in vars(parent).items()
        if not hasattr(base, attribute) and not callable(value)
    ]
    for attribute in given:
        for meant in get_close_matches(attribute, known, n=1, cutoff=0.85):
            raise ConfigError(
                f"algorithm '{name}': nothing reads its {attribute}, did you mean '{meant}'? (call what is your own "
                "otherwise)"
            )


def made_algorithm(found: Any, settings: AlgorithmConfig) -> Any:
    """The algorithm of class `found`. Raises ConfigError where one of the user's own cannot be made, or keeps none of
    what its base class does."""
    with user_code(f"algorithm '{settings.name}' cannot be made of its settings", ConfigError):
        algorithm = found(settings)
    if not hasattr(algorithm, "settings"):
        raise ConfigError(f"algorithm '{settings.name}' has no settings: call super().__init__(settings) in __init__")
    return algorithm


def check_algorithm(settings: AlgorithmConfig, config: Any) -> None:
    """Raises ConfigError where the run's `config` does not go with the algorithm that `settings` are of."""
    algorithm = made_algorithm(find_algorithm(settings.name), settings)
    algorithm.check_declared(config)
    with algorithm_code(settings.name, " in check"):
        algorithm.check(config)


def algorithm_code(name: str, where: str = "") -> AbstractContextManager[None]:
    """Around a call of the algorithm `name`: what one of the user's own raises becomes one line, a ConfigError. What a
    shipped one raises is a bug, and shown whole."""
    return nullcontext() if name in SHIPPED else user_code(f"algorithm '{name}' failed{where}", ConfigError)


def read_algorithm(given: Any) -> AlgorithmConfig:
    """The section of the algorithm that `given` names, checked by that algorithm's own class."""
    if isinstance(given, SavedAlgorithmConfig):
        given = given.model_dump()
    if isinstance(given, AlgorithmConfig):
        if not isinstance(given, _config_class(given.name)):
            raise ValueError(f"{type(given).__name__} does not hold the settings of algorithm {given.name}")
        return given
    if not isinstance(given, Mapping):
        raise ValueError(
            f"it is a section of keys: set algorithm.name to one of {', '.join(SHIPPED)}, or to the import path of "
            "your own"
        )
    name = given.get("name", DEFAULT)
    if not isinstance(name, str):
        return AlgorithmConfig.model_validate({"name": name})  # says what is wrong with it
    config_class = _config_class(name)
    if foreign := [str(key) for key in given if key not in config_class.model_fields]:
        sentences = _foreign(foreign, given, name, config_class.model_fields.keys())
        raise _refusal(dict(zip(foreign, sentences, strict=True)))
    return config_class.model_validate({**given, "name": name})


def _read(given: Any, info: ValidationInfo) -> AlgorithmConfig:
    is_own = isinstance(given, Mapping) and ":" in str(given.get("name", DEFAULT))
    return SavedAlgorithmConfig(**given) if is_own and info.context == SAVED else read_algorithm(given)


AnyAlgorithm = Annotated[SerializeAsAny[AlgorithmConfig], BeforeValidator(_read)]
"""The type of `RunConfig.algorithm`: written and read as what it is, with all keys of its own class."""


def own_keys(name: str) -> tuple[str, ...]:
    """The keys of the algorithm `name`. Raises ConfigError."""
    return tuple(find_algorithm(name).Config.model_fields)


def _config_class(name: str) -> type[AlgorithmConfig]:
    try:
        config_class: type[AlgorithmConfig] = find_algorithm(name).Config
    except ConfigError as error:
        raise _refusal({"name": str(error)}) from error
    return config_class


def _foreign(keys: list[str], given: Mapping[str, Any], name: str, known: Set[str]) -> list[str]:
    """One sentence for each key that the algorithm does not have."""
    owners = {key: [other for other in SHIPPED if key in own_keys(other)] for key in keys}
    hints = {key: behind(meant_by(key)) or nearest(key, known) for key in keys}
    sentences = [
        f"unknown key 'algorithm.{key}': it is of {', '.join(owners[key])}, and {name} takes {', '.join(known)}"
        if owners[key]
        else f"unknown key 'algorithm.{key}'{hints[key]}"
        for key in keys
    ]
    if any(owners[key] or not hints[key] for key in keys):  # and no slip of the pen
        # The usual way to get here: algorithm.name on the command line, over a config file made for another algorithm.
        section = ", ".join([f"name: {name}", *(f"{key}: {given[key]}" for key in given if key in known - {"name"})])
        sentences[-1] += f"; to drop what a config file says of another one, set 'algorithm={{{section}}}'"
    return sentences


def _refusal(messages: Mapping[str, str]) -> ValidationError:
    """An error from the messages about keys of the section, which keeps the places of the keys."""
    wrong = []
    for key, message in messages.items():
        said = PydanticCustomError(WHOLE_SENTENCE, "{message}", {"message": message})
        wrong.append(InitErrorDetails(type=said, loc=(key,), input=None))
    return ValidationError.from_exception_data("algorithm", wrong)
