"""The configuration of a run: one typed tree of sections, and what reads and writes it."""

# ruff: noqa: F401  what is imported here is what other packages take from here

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.config.backends import OpenRLHFConfig, TorchConfig, VllmConfig
from coachrl.config.coach import CoachConfig, EvidenceConfig, MemberConfig, RetrospectiveConfig, StrategicConfig
from coachrl.config.load import (
    dump_config,
    find_config,
    kept_config,
    laid_over,
    load_config,
    make_section,
    parse_config,
    resumable_settings,
    sources_of,
    with_absolute_paths,
)
from coachrl.config.pipeline import PipelineConfig, PolicyConfig, RoleConfig
from coachrl.config.reward import RewardConfig
from coachrl.config.run import RunConfig
from coachrl.config.sandbox import SandboxConfig
from coachrl.config.section import Section, flat_settings
from coachrl.config.tasks import TaskConfig, TaskSection
from coachrl.config.training import AuditConfig, EvalConfig, RolloutConfig, SamplingConfig, SftConfig, TrainConfig
from coachrl.config.unread import check_read, warn_of_unread, without_effect
