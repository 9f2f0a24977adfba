"""What the pipelines on programming tasks share."""

from __future__ import annotations

from collections.abc import Collection

from coachrl.config import PipelineConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Pipeline
from coachrl.sandbox.base import Workspace
from coachrl.tasks.code.problems import CodeTruth


class CodePipeline(Pipeline):
    """Base of the pipelines whose agents write programs, on tasks whose ground truth is a `CodeTruth`."""

    task_sources = ("coop-code", "humaneval", "code")
    ground_truth = CodeTruth
    small_model = PipelineConfig(max_new_tokens=128)
    needs_workspace = True

    def prompt_fields(self, kind: str) -> Collection[str]:
        return {"problem", "entry_point", "history", "token_limit"}

    def require_workspace(self, workspace: Workspace | None) -> Workspace:
        """Raises ConfigError where there is none."""
        if workspace is None:
            raise ConfigError(f"pipeline {self.name} runs programs: it needs a sandbox")
        return workspace
