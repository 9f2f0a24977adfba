"""Settings of whole runs that take seconds, and whose replies do not matter."""

SETTINGS = (
    "train.steps=3", "train.tasks_per_step=2", "train.learning_rate=1e-3", "train.mask_truncated=false",
    "tasks.heldout_count=2", "tasks.train_count=8", "pipeline.prompt_style=short", "pipeline.max_new_tokens=6",
    "pipeline.roles.code_executor.python=false", "pipeline.roles.code_executor.max_turns=1",
    "torch.threads=1", "torch.device=cpu", "coach.name=rules",
)  # fmt: skip
