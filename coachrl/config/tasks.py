"""The section on tasks: one class for each source, with the keys that this source reads and no others.

`tasks.source` chooses among them. Without one, a pipeline says which source it takes (`coachrl.pipelines.defaults`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, field_validator

from coachrl.config.section import MAX_COUNT, Section
from coachrl.storage.files import at_home

_IMPORTED = "my_package.my_module:load"
_TRAIN_FILE = "The file that lists the training tasks."
_HELDOUT_FILE = "The file that lists the held-out tasks."
MOST_HELD_OUT = 500
"""Where nobody says how many tasks are held out: each evaluation plays them all."""


class TaskSection(Section):
    """What every source of tasks has. Training and held-out tasks never overlap."""

    train_count: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="So many training tasks are used. By default it is all of them."
    )
    heldout_count: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="So many held-out tasks are used. By default it is all of them."
    )

    @property
    def leaves_out_unusable(self) -> bool:
        """Whether a task that cannot be graded is left out, rather than ending the run."""
        return False


class GeneratedTasks(TaskSection):
    """Tasks that are made from the run's seed, as many as are asked for."""

    train_count: int = Field(512, ge=1, le=MAX_COUNT, description="So many training tasks are generated.")
    heldout_count: int = Field(64, ge=1, le=MAX_COUNT, description="So many held-out tasks are generated.")

    def count(self, split: Literal["train", "heldout"]) -> int:
        """How many tasks of the split are generated."""
        return self.train_count if split == "train" else self.heldout_count


class GradedByFiles(TaskSection):
    """Tasks whose grading needs files or programs that may turn out not to work."""

    skip_unusable: bool = Field(
        False,
        description="Tasks that cannot be graded are left out with a warning: those without answers, and those whose "
        "reference program fails its own tests.",
    )

    @property
    def leaves_out_unusable(self) -> bool:
        return self.skip_unusable


class DividedTasks(TaskSection):
    """Tasks of the user's own, of which a part is held out where no held-out ones are given."""

    heldout_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Where no held-out tasks are given, this share of all tasks is held out, or heldout_count of them: "
        f"a sample that is drawn from the run's seed. By default it is a tenth, {MOST_HELD_OUT} tasks at most.",
    )


class WordProblemTasks(GeneratedTasks):
    """Word problems for small models, in graded levels."""

    source: Literal["word-problems"] = Field("word-problems", description="Word problems, generated.")
    levels: tuple[int, ...] = Field(
        (1,), description="The levels to take problems from in turn. A problem of level n takes n steps, from 1 up."
    )


class ProblemFields(Section):
    """What the fields of your file are called, where they have other names than these."""

    problem: str | None = Field(
        None, description="The field with the problem's text. By default it is prompt, problem or question."
    )
    answer: str | None = Field(
        None,
        description="The field with the answer: it alone, or a solution with the answer in \\boxed{…} or after ####. "
        "By default it is answer, or else solution.",
    )
    id: str | None = Field(
        None, description="The field with the problem's name. By default it is id, or else the place in the file."
    )
    category: str | None = Field(
        None,
        description="The field with the problem's kind. By default it is category, or source, or the file's name.",
    )
    level: str | None = Field(None, description="The field with the problem's level. By default it is level.")


class MathTasks(DividedTasks):
    """Mathematics problems from JSON, CSV or parquet files, or from a Hugging Face data set."""

    source: Literal["math"] = Field("math", description="Mathematics problems of your own.")
    train: str | None = Field(
        None, description="The file, folder or Hugging Face name of the training problems (docs/tasks.md)."
    )
    heldout: str | None = Field(
        None,
        description="The same for the held-out problems. By default they are the data set's split test or validation, "
        "or else a share of the training problems.",
    )
    subset: str | None = Field(
        None, description="Which configuration of a Hugging Face data set, where it has several."
    )
    train_split: str = Field("train", description="The data set's split to train on.")
    heldout_split: str | None = Field(
        None, description="The data set's split to hold out. By default it is test, or else validation."
    )
    fields: ProblemFields = Field(default_factory=ProblemFields)
    grader: str | None = Field(
        None,
        pattern=":",
        description="A function of your own, as my_package.my_module:same, that says whether an answer equals the "
        "reference. By default math-verify does.",
    )

    @field_validator("train", "heldout")
    @classmethod
    def _home_is_known(cls, name: str | None) -> str | None:
        return str(at_home(name)) if name and name.startswith("~") else name  # it may be a name on the hub


class DSBenchLiteTasks(TaskSection):
    """The data tasks that coachrl ships, made from data sets of installed packages."""

    source: Literal["dsbench-lite"] = Field("dsbench-lite", description="Data tasks in DSBench's form, shipped.")


class DSBenchTasks(GradedByFiles):
    """The data tasks of DSBench in their official layout."""

    source: Literal["dsbench"] = Field("dsbench", description="The official data tasks of DSBench.")
    root: Path | None = Field(None, description="The folder that holds data_resplit/ and answers/.")
    train: Path | None = Field(None, description=_TRAIN_FILE)
    heldout: Path | None = Field(None, description=_HELDOUT_FILE)
    cleaned_prompts: Path | None = Field(
        None, description="A JSON file with shorter prompts and declared columns, by the task's name."
    )


class CoopCodeTasks(GradedByFiles):
    """The programming tasks for two that coachrl ships."""

    source: Literal["coop-code"] = Field("coop-code", description="Programming tasks for two agents, shipped.")


class HumanEvalTasks(GradedByFiles):
    """The programming tasks of HumanEval, read from its installed package."""

    source: Literal["humaneval"] = Field("humaneval", description="HumanEval, from its package.")


class CodeTasks(GradedByFiles, DividedTasks):
    """Programming tasks from JSON-lines files in the form of coop-code."""

    source: Literal["code"] = Field("code", description="Programming tasks from files of your own.")
    train: Path | None = Field(None, description=_TRAIN_FILE)
    heldout: Path | None = Field(None, description=_HELDOUT_FILE)


class PlanPathTasks(GeneratedTasks):
    """Mazes in which a path has to be found."""

    source: Literal["planpath"] = Field("planpath", description="Mazes, generated.")
    size: int = Field(10, ge=2, description="The number of cells of a side.")
    walls: float = Field(0.2, ge=0, lt=1, description="The share of cells that are walls.")


class SokobanTasks(GeneratedTasks):
    """Levels in which boxes have to be pushed to their goals."""

    source: Literal["sokoban"] = Field("sokoban", description="Sokoban levels, generated.")
    size: int = Field(6, ge=2, description="The number of cells of a side, inside the border.")
    boxes: int = Field(1, ge=1, description="The number of boxes.")
    walls: float = Field(0.1, ge=0, lt=1, description="The share of cells that are walls.")


class SudokuTasks(GeneratedTasks):
    """Sudoku puzzles with one solution."""

    source: Literal["sudoku"] = Field("sudoku", description="Sudoku puzzles, generated.")
    size: int = Field(4, ge=2, description="The number of cells of a side.")
    blanks: int | None = Field(None, ge=1, description="The number of empty cells. By default it is half of all.")


class ImportedTasks(GradedByFiles, DividedTasks):
    """Tasks from a function of your own. It gets the run's configuration, and gives back the training and the held-out
    tasks; or one list, of which a part is held out."""

    source: str = Field(
        pattern=":",
        description="The function, as my_package.my_module:load. It is looked for in the current folder too.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="The function's own parameters, which it finds in config.tasks.options."
    )


DEFAULT_SOURCE: str = WordProblemTasks.model_fields["source"].default


def _tag(value: Any) -> str | None:
    """Which member of the union `value` is for. Brackets mark it as no key where an error names its place."""
    source = value.get("source", DEFAULT_SOURCE) if isinstance(value, Mapping) else getattr(value, "source", None)
    if isinstance(source, str) and ":" in source:
        source = _IMPORTED
    return f"[{source}]" if isinstance(source, str) else None


TaskConfig = Annotated[
    Annotated[WordProblemTasks, Tag("[word-problems]")]
    | Annotated[MathTasks, Tag("[math]")]
    | Annotated[DSBenchLiteTasks, Tag("[dsbench-lite]")]
    | Annotated[DSBenchTasks, Tag("[dsbench]")]
    | Annotated[CoopCodeTasks, Tag("[coop-code]")]
    | Annotated[HumanEvalTasks, Tag("[humaneval]")]
    | Annotated[CodeTasks, Tag("[code]")]
    | Annotated[PlanPathTasks, Tag("[planpath]")]
    | Annotated[SokobanTasks, Tag("[sokoban]")]
    | Annotated[SudokuTasks, Tag("[sudoku]")]
    | Annotated[ImportedTasks, Tag(f"[{_IMPORTED}]")],
    Discriminator(_tag),
]
"""The section `tasks`, whichever its source."""

SOURCES: dict[str, type[TaskSection]] = {
    tag.tag.strip("[]"): section for section, tag in map(get_args, get_args(get_args(TaskConfig)[0]))
}
"""Every source by its name, and the section that it reads."""


def sources_with(key: str) -> list[str]:
    """The sources that have the setting `tasks.<key>`."""
    return [name for name, section in SOURCES.items() if key in section.model_fields]


def first_that_reads(keys: Iterable[str], sources: Sequence[str]) -> str:
    """The first of `sources`, named ones or import paths, that has every setting of `keys` which any source has:
    tasks.root asks for the official DSBench, tasks.train for files. Where none does it is the first of all, and the
    configuration then says so."""
    known = {key for key in keys if sources_with(key)}
    reading = (name for name in sources if known <= SOURCES.get(name, ImportedTasks).model_fields.keys())
    return next(reading, sources[0])
