"""The distributed backend: OpenRLHF on Ray, with vLLM engines and DeepSpeed trainers, a group of each for every policy.

`placement` and `balance` are plain arithmetic and need nothing; `bindings` is the one place that imports OpenRLHF.
"""
