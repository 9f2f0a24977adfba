"""What TRL, transformers, OpenRLHF, verl, prime-rl, axolotl, Lightning, ART and inspect_ai call what is here otherwise.

Tables of words and what is meant by them, read by the hints of settings and of the command line, and held against
docs/coming_from.md. A word with a section, as in verl's `rollout.n`, counts in that section alone.
"""

from __future__ import annotations

from collections.abc import Container, Mapping


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {word: answer for words, answer in table.items() for word in words.split()}


SETTINGS = _by_word(
    {
        "model_name_or_path pretrain base_model model.path model.name": "model",
        "run_name experiment_name": "name",
        "output_dir save_dir save_path ckpt_path ckpt.path default_local_dir default_root_dir": "out",
        "dataset dataset_name dataset_path train_dataset train_data train_file train_files data_files data.path "
        "datasets file path prompt_data prompt_dataset": "tasks.train",
        "eval_dataset eval_data eval.dataset val_files val_data validation_file test_file tasks.test tasks.eval "
        "tasks.val": "tasks.heldout",
        "val_set_size validation_split test_size": "tasks.heldout_share",
        "max_samples max_train_samples": "tasks.train_count",
        "limit eval.limit max_eval_samples num_examples": "tasks.heldout_count",
        "dataset_train_split prompt_split tasks.split": "tasks.train_split",
        "dataset_test_split eval.split": "tasks.heldout_split",
        "dataset_config": "tasks.subset",
        "input_key prompt_key": "tasks.fields.problem",
        "label_key answer_key": "tasks.fields.answer",
        "agent_func_path rollout_func solver workflow": "pipeline.name",
        "agents": "pipeline.roles",
        "system_prompt": "pipeline.prompts",
        "max_completion_length generate_max_len max_response_length response_length max_tokens sampling.max_tokens "
        "rollout.max_new_tokens": "pipeline.max_new_tokens",
        "rollout.temperature": "sampling.temperature",
        "reward_func reward_funcs reward_fn reward_function reward_functions custom_reward_function remote_rm_url "
        "remote_url": "reward.source",
        "judge judge_model coach.model": "coach.name",
        "model_base_url coach.base_url coach.url": "coach.api_base",
        "budget cost_limit": "coach.budget_usd",
        "max_connections": "coach.concurrency",
        "max_retries": "coach.max_attempts",
        "adv_estimator advantage_estimator advantage.estimator rl": "algorithm.name",
        "beta kl_beta kl_coef kl_loss_coef kl_penalty_coef init_kl_coef kl.init_coef": "algorithm.kl_beta",
        "max_steps num_steps total_steps total_training_steps num_train_epochs num_epochs total_epochs num_episodes": (
            "train.steps"
        ),
        "batch_size train_batch_size per_device_train_batch_size rollout_batch_size rollout.batch_size "
        "groups_per_step": "train.tasks_per_step",
        "num_generations n_samples_per_prompt rollout.n_samples_per_prompt rollout.n sampling.n num_return_sequences "
        "rollouts_per_example rollouts_per_group": "train.group_size",
        "num_iterations": "train.ppo_epochs",
        "lr actor_learning_rate": "train.learning_rate",
        "lr_scheduler lr_scheduler_type warmup_style": "train.lr_schedule",
        "lr_warmup_steps lr_warmup_ratio lr_warmup_steps_ratio warmup_ratio": "train.warmup_steps",
        "grad_clip clip_grad gradient_clip_val": "train.max_grad_norm",
        "epsilon eps_clip clip_ratio clip_ratio_low": "train.clip_range",
        "epsilon_high eps_clip_low_high clip_ratio_high": "train.clip_range_high",
        "loss_type loss_agg_mode": "train.loss_aggregation",
        "mask_truncated_completions": "train.mask_truncated",
        "save_steps save_freq save_every save_interval ckpt.interval": "train.checkpoint_every",
        "save_total_limit max_ckpt_num ckpt.max_num max_actor_ckpt_to_keep": "train.keep_checkpoints",
        "load_best_model_at_end metric_for_best_model best_metric_key": "train.keep_best",
        "eval_steps eval.steps eval_every eval_interval test_freq val_check_interval check_val_every_n_epoch": (
            "eval.every"
        ),
        "eval_n_samples_per_prompt eval.n_samples_per_prompt num_generations_eval eval.n eval.epochs val_kwargs.n": (
            "eval.samples_per_task"
        ),
        "eval_temperature val_kwargs.temperature": "eval.temperature",
        "accelerator gpu cpu cuda": "torch.device",
        "lora lora_r lora.rank adapter use_peft": "torch.lora_rank",
        "lora.alpha": "torch.lora_alpha",
        "torch_compile": "torch.compile",
        "n_gpus num_gpus n_gpus_per_node num_gpus_per_node actor_num_gpus_per_node num_processes devices": (
            "openrlhf.gpus"
        ),
        "num_engines vllm_num_engines vllm.num_engines": "openrlhf.engines",
        "tensor_parallel_size tensor_model_parallel_size parallel.tp vllm_tensor_parallel_size "
        "vllm.tensor_parallel_size": ("openrlhf.tensor_parallel"),
        "colocate_all colocate_all_models": "openrlhf.colocate",
        "enable_sleep vllm_enable_sleep vllm_enable_sleep_mode": "openrlhf.sleep",
        "optimizer_offload": "openrlhf.adam_offload",
        "attn_implementation flash_attn flash_attention": "openrlhf.attention",
        "async_train async_enable max_async_level": "openrlhf.one_step_off",
    }
)
"""The one setting that is meant."""

SENTENCES = _by_word(
    {
        "gradient_accumulation_steps accumulate_grad_batches micro_batch_size micro_train_batch_size "
        "micro_rollout_batch_size ppo_micro_batch_size_per_gpu train.micro_batch_size rollout.micro_batch_size": (
            "a step's samples are split by themselves, in passes of torch.micro_batch_tokens or "
            "openrlhf.micro_batch_tokens (and in optimizer steps by train.ppo_mini_batch_size)"
        ),
        "max_prompt_length prompt_max_len prompt_length max_model_len seq_len sequence_len max_seq_len": (
            "no prompt is cut, and prompt and reply have vllm.max_length or openrlhf.max_length tokens at most"
        ),
        "use_vllm vllm_mode vllm_server_host rollout.name": (
            "vLLM generates with backend=vllm, on one GPU, or backend=openrlhf"
        ),
        "gpu_memory_utilization vllm_gpu_memory_utilization": (
            "it is vllm.memory with backend=vllm, and openrlhf.engine_memory with backend=openrlhf"
        ),
        "deepspeed ds_config fsdp fsdp_config": "several GPUs train with backend=openrlhf (docs/distributed.md)",
        "nodes nnodes num_nodes actor_num_nodes": "openrlhf.gpus counts the GPUs of all nodes (docs/distributed.md)",
        "bf16 fp16 dtype torch_dtype param_dtype mixed_precision": (
            "it is torch.precision=bfloat16, which is the default, or float32"
        ),
        "load_in_4bit load_in_8bit": "weights are not quantized, but torch.lora_rank and torch.share_base save memory",
        "lora_dropout lora.dropout lora_target_modules lora.target_modules target_modules": (
            "adapters stand in every linear layer but the output layer, without dropout (torch.lora_rank)"
        ),
        "optim optimizer": "the optimizer is AdamW, with train.learning_rate and train.weight_decay",
        "critic critic_learning_rate gae lambd lam": "no critic is trained",
        "gamma": "returns are not discounted",
        "entropy_coef entropy_coeff entropy_loss_coef": "there is no entropy bonus (see train.clip_range_high)",
        "use_kl_loss use_kl_in_reward": "algorithm.kl_beta is the weight of the KL penalty, and 0 leaves it out",
        "scale_rewards normalize_reward norm_adv_by_std_in_grpo no_std_norm": (
            "rewards are divided by the standard deviation of a group (algorithm.name=grpo), or of "
            "algorithm.normalize_over"
        ),
        "importance_sampling_level": "ratios are of tokens (see train.clip_range and train.loss_aggregation)",
        "top_p top_k min_p sampling.top_p sampling.top_k rollout.top_p repetition_penalty": (
            "training draws from the whole distribution, as importance ratios need (for evaluation there is eval.top_p)"
        ),
        "temperature": "training draws at sampling.temperature, and evaluation at eval.temperature",
        "reward_model reward_pretrain": "rewards are of a coach (coach.name), or of a function (reward.source)",
        "reward_weights": "reward.source names one function, which may weigh several",
        "chat_template apply_chat_template": "the model's own chat template is taken in any case",
        "trust_remote_code": "models with code of their own are not loaded",
        "logging_steps logging_strategy log_every log_interval log_every_n_steps": (
            "every step is a line of metrics.jsonl in the run's folder"
        ),
        "report_to logger project_name wandb use_wandb wandb_project wandb_run_name tensorboard use_tensorboard mlflow "
        "trackio": ("a tracker is named by --track wandb, or by track=[wandb]"),
        "log_dir logging_dir": "a run writes into --out, and an evaluation its episodes with --episodes",
        "overwrite overwrite_output_dir force": "no run is written over: --name gives another one",
        "eval_strategy evaluation_strategy save_strategy": (
            "eval.every and train.checkpoint_every say it in numbers of steps"
        ),
        "do_eval eval_on_start val_before_train eval.before": (
            "held-out tasks are played before and after training in any case"
        ),
        "epochs max_epochs": (
            "a run has train.steps, a step train.ppo_epochs passes, a held-out task eval.samples_per_task episodes"
        ),
        "resume resume_from_checkpoint resume_from_path resume_mode load_checkpoint load_enable": (
            "a run goes on with `coachrl train --resume RUN`"
        ),
        "push_to_hub hub_model_id": "`coachrl export RUN --format hub --out FOLDER --push NAME/REPO` uploads them",
        "fast_dev_run smoke_test": "--model tiny-random --steps 1 tries everything in seconds",
        "api_key coach.api_key openai_api_key": "keys are read from the environment (docs/coaches.md)",
        "tools": "an agent's are pipeline.roles.NAME.tools (docs/pipelines.md), a coach's coach.tools",
        "debug log_level loglevel": "`coachrl --verbose` before the command shows more",
        "T set override overrides": "settings stand by themselves, as key.sub=value",
        "config config_file config_path config_name": "a configuration is named by --config",
    }
)
"""What there is in the place of what has no setting of its own here."""

ALGORITHMS = _by_word(
    {
        "ppo gae": "algorithm.name=reinforce_pp has PPO's clipped loss, and no critic",
        "reinforce reinforce++ reinforce_plus_plus mappa": "it is algorithm.name=reinforce_pp",
        "group_norm gspo": "it is algorithm.name=grpo, whose ratios are of tokens",
        "dr_grpo drgrpo": (
            "its loss is train.loss_aggregation=seq-mean-token-sum-norm with algorithm.name=grpo, which divides by the "
            "group's deviation"
        ),
        "dapo": (
            "it is algorithm.name=grpo with algorithm.without_spread=skip, algorithm.refill_up_to=4, "
            "train.clip_range_high=0.28 and a train.ppo_mini_batch_size"
        ),
        "rloo remax": "algorithm.name=grpo compares with the mean of a task's episodes",
        "dpo": "`coachrl export RUN --format dpo` makes its pairs, for other trainers",
        "sft": "`coachrl sft` is a command of its own",
        "c3": "it is algorithm.name=counterfactual",
    }
)
"""A word in the place of `algorithm.name`."""

COMMANDS = _by_word(
    {
        "run fit start launch grpo ppo rl finetune": "train",
        "resume continue": "train --resume RUN",
        "evaluate test validate benchmark": "eval",
        "logs log show dashboard ui watch inspect tensorboard": "view RUN",
        "list ls ps status": "runs list",
        "score judge": "rescore RUN",
        "diff": "compare RUN RUN",
        "push upload": "export RUN --format hub --out FOLDER --push NAME/REPO",
        "merge save": "export RUN --format hub --out FOLDER",
        "chat infer inference generate predict vllm-serve": "serve RUN",
        "play sample": "rollout",
        "ckpt": "checkpoints list RUN",
        "check env info": "doctor",
        "init demo quickstart": "train --config quickstart",
        "settings": "config show",
        "help": "--help",
        "version": "--version",
    }
)
"""A word in the place of a command, and what to type behind `coachrl`."""


def meant_by(dotted: str, sections: Container[str] = ()) -> str:
    """The setting, or the sentence (which has a blank), that a key of another trainer stands for; empty where it is
    none. Words in front of the last are its sections; in one of our own `sections`, a word means what belongs there."""
    words = dotted.split(".")
    for start in range(len(words) - 1):
        if answer := _answer(".".join(words[start:])):
            return answer
    answer = _answer(words[0]) or _answer(words[-1])
    is_free = len(words) == 1 or words[0] not in sections or words[0] == "train"
    return answer if is_free or f"{words[0]}." in answer else ""


def behind(meant: str) -> str:
    """What `meant_by` found, as it is said behind the word."""
    return f": {meant}" if " " in meant else f", did you mean '{meant}'?" if meant else ""


def _answer(word: str) -> str:
    return SETTINGS.get(word) or SENTENCES.get(word, "")
