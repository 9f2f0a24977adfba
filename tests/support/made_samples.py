"""Training samples of given token ids."""

import numpy as np

from coachrl.types import TrainSample


def train_sample(prompt, response, logprobs=0.0, mask=1.0, **fields):
    """A sample of one action. logprobs, mask: of each token, or one number for all. fields: any others of a sample; the
    role is the policy where none is named."""
    known = {"policy": "solver", "action_id": "a", "episode_id": "e", "task_id": "t", "turn": 0, "index": 0, **fields}
    return TrainSample(
        **{"role": known["policy"], **known},
        prompt_ids_P=np.array(prompt),
        response_ids_L=np.array(response),
        old_logprobs_L=of_each_token(logprobs, response),
        mask_L=of_each_token(mask, response),
    )


def of_each_token(values, response):
    return np.full(len(response), values, dtype=np.float32)


def reply_sample(prompt, reply, advantage, **fields):
    """A reply that a backend drew, with one advantage for all of its tokens."""
    advantages = of_each_token(advantage, reply.token_ids)
    return train_sample(prompt, reply.token_ids, reply.logprobs, advantages_L=advantages, **fields)
