"""Truncated importance weights: what the trainer's model makes of replies that a sampler drew (TIS, Yao et al. 2025,
"Your efficient RL framework secretly brings you off-policy RL training").

A sampler's kernels and precision are not the trainer's, so that a reply is drawn from pi_sampler where the gradient is
taken of pi_trainer, though the weights are the same. A token's advantage is multiplied by

    w_t = min(pi_trainer(t) / pi_sampler(t), cap)

and PPO's ratio is taken to pi_trainer. Without it the ratio itself is taken to pi_sampler, and the clip, which is there
for how far an update goes, is spent on what the two disagree by.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch
from coachrl.trainers.algorithms.advantages.tokens import Floats
from coachrl.trainers.backends.base import Samples, advantages_of
from coachrl.types import TrainSample


def weighed(batch: AdvantageBatch, cap: float) -> AdvantageBatch:
    """A batch that has its advantages and the trainer's log-probabilities, with weighted advantages, whose old
    log-probabilities are the trainer's. Its metrics say which share of the trained tokens the cap has cut
    (`importance_clipped`), the mean weight of all, and by how much trainer and sampler differ (`importance_gap`, mean
    absolute log ratio), which the update can no longer see."""
    samples: Samples = {}
    gaps = [np.zeros(0)]  # log ratios of trained tokens
    for policy, group in batch.samples.items():
        samples[policy] = []
        for sample in group:
            trainer_L = _trainer_logprobs(sample)
            with np.errstate(invalid="ignore"):  # of what is left out, log-probs may be anything
                gap_L = np.where(sample.mask_L > 0, trainer_L.astype(np.float64) - sample.old_logprobs_L, 0.0)
            advantages_L = (advantages_of(sample) * _weights(gap_L, cap)).astype(np.float32)
            samples[policy].append(replace(sample, advantages_L=advantages_L, old_logprobs_L=trainer_L))
            gaps.append(gap_L[sample.mask_L > 0])
    gap_T = np.concatenate(gaps)
    metrics = dict(batch.metrics)
    if gap_T.size:
        metrics["importance_clipped"] = float((gap_T > np.log(cap)).mean())
        metrics["importance_gap"] = float(np.abs(gap_T).mean())
        metrics["importance_weight"] = float(_weights(gap_T, cap).mean())
    return replace(batch, samples=samples, metrics=metrics)


def _weights(log_ratios: Floats, cap: float) -> Floats:
    """min(ratio, cap), where ratios themselves may be more than a float holds."""
    return np.exp(np.minimum(log_ratios, np.log(cap)))


def _trainer_logprobs(sample: TrainSample) -> NDArray[np.float32]:
    if sample.trainer_logprobs_L is None:
        raise ValueError("importance weights need the trainer's log-probs: call Backend.with_trainer_logprobs first")
    return sample.trainer_logprobs_L
