"""Truncated importance weights: what the trainer's model makes of replies that a sampler drew (TIS, Yao et al. 2025,
"Your efficient RL framework secretly brings you off-policy RL training").

A sampler's kernels and precision are not the trainer's, so that a reply is drawn from pi_sampler where the gradient is
taken of pi_trainer, though the weights are the same. A token's advantage is multiplied by

    w_t = min(pi_trainer(t) / pi_sampler(t), cap)

and PPO's ratio is taken to pi_trainer. Without it the ratio itself is taken to pi_sampler, and the clip, which is there
for how far an update goes, is spent on what the two disagree by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch
from coachrl.types import TrainSample


@dataclass(frozen=True)
class TruncatedImportance:
    """The weights at one cap, over a batch that has its advantages and the trainer's log-probabilities."""

    cap: float

    def weigh(self, batch: AdvantageBatch) -> AdvantageBatch:
        """The batch with weighted advantages, whose old log-probabilities are the trainer's. Its metrics say which
        share of the trained tokens the cap has cut (`importance_clipped`), the mean weight of all, and by how much
        trainer and sampler differ (`importance_gap`, mean absolute log ratio), which the update can no longer see."""
        weights = {
            sample.action_id: np.exp(_trainer_logprobs(sample).astype(np.float64) - sample.old_logprobs_L)
            for group in batch.samples.values()
            for sample in group
        }
        samples = {
            policy: [self._weighed(sample, weights[sample.action_id]) for sample in group]
            for policy, group in batch.samples.items()
        }
        trained = [weights[s.action_id][s.mask_L > 0] for group in batch.samples.values() for s in group]
        trained_T = np.concatenate(trained) if trained else np.zeros(0)
        metrics = {}
        if trained_T.size:
            metrics["importance_clipped"] = float((trained_T > self.cap).mean())
            metrics["importance_gap"] = float(np.abs(np.log(trained_T)).mean())
            metrics["importance_weight"] = float(np.minimum(trained_T, self.cap).mean())
        return replace(batch, samples=samples, metrics={**batch.metrics, **metrics})

    def _weighed(self, sample: TrainSample, weights_L: np.ndarray) -> TrainSample:
        assert sample.advantages_L is not None
        weighed_L = sample.advantages_L * np.minimum(weights_L, self.cap)
        trainer_L = _trainer_logprobs(sample)
        return replace(sample, advantages_L=weighed_L.astype(np.float32), old_logprobs_L=trainer_L)


def _trainer_logprobs(sample: TrainSample) -> np.ndarray:
    if sample.trainer_logprobs_L is None:
        raise ValueError("importance weights need the trainer's log-probs: call Backend.with_trainer_logprobs first")
    return sample.trainer_logprobs_L
