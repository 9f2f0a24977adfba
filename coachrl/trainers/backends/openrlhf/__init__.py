"""The distributed backend: OpenRLHF on Ray, with vLLM engines and DeepSpeed trainers, a group of each for every policy.

`placement`, `balance` and `memory` are plain arithmetic and need nothing, `logprobs` needs torch and transformers;
`bindings` is the one place that imports OpenRLHF.
"""
