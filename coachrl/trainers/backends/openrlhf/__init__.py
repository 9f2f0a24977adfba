"""The distributed backend: OpenRLHF on Ray, with vLLM engines and DeepSpeed trainers, a group of each for every policy.

`cluster` says which GPUs there are and who sits on which, `engines` generate, `training` trains, and `rollout` plays
episodes in processes of their own. `cluster.placement`, `cluster.memory` and `rollout.balance` are plain arithmetic and
need nothing, `training.logprobs` needs torch and transformers; `bindings` is the one place that imports OpenRLHF.
"""
