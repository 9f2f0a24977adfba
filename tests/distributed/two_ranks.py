"""`python two_ranks.py RANK PORT`: one of two ranks of DeepSpeed, set up as for a policy, with a model of one matrix.

Prints what it found for ZeRO-2 and ZeRO-3: see `test_numbers.py`.
"""

import json
import os
import sys

import deepspeed
import openrlhf_cpu
import torch
from flat_config import with_settings

from coachrl.trainers.backends.openrlhf.arguments import openrlhf_arguments
from coachrl.trainers.backends.openrlhf.bindings import get_strategy
from coachrl.trainers.backends.openrlhf.cluster.placement import plan_placement
from coachrl.trainers.backends.openrlhf.training.steps import begin_step


class Rank:
    """What OpenRLHF's policy actor holds, as far as coachrl reads it."""

    def __init__(self, context, model=None):
        config = with_settings(gpus=2, zero_stage=context, learning_rate=1e-3, max_grad_norm=0.0)
        [placed] = plan_placement(config.openrlhf, {"solver": True}, reference=False).policies
        arguments = openrlhf_arguments(config, placed)
        self.strategy = get_strategy(arguments)
        self.strategy.setup_distributed()
        torch.manual_seed(0)
        given = arguments.actor
        chosen = {"optim": "adam", "adam": vars(given.adam), "lr_scheduler": "constant", "scheduler_steps": 1}
        model = model or torch.nn.Linear(32, 32, bias=False)
        self.engine, _, _ = self.strategy.prepare((model, {**chosen, "max_norm": given.max_norm}))

    def step(self, scale, micro_batches=4):
        """One optimizer step, of micro-batches that each have a gradient of scale(number) in every place."""
        begin_step(self.engine, micro_batches)
        for number in range(micro_batches):
            loss = self.engine(torch.ones(1, 32, dtype=torch.bfloat16)).float().sum() * scale(number)
            self.engine.backward(loss)
            self.engine.step()

    def try_step(self, scale):
        try:
            self.step(scale)
        except FloatingPointError as error:
            return str(error)
        return "stepped"

    def weights(self):
        return [float(part.detach().sum()) for part in own_weights(self.engine.optimizer)]


def gathered():
    """The least of each parameter that ZeRO-3 gathers, a large one before small ones, all of them full of ones."""
    model = torch.nn.ParameterList(torch.ones(size) for size in (2**23, *[64] * 8))
    parameters = list(Rank(3, model).engine.module)
    least = []
    for _ in range(3):
        with deepspeed.zero.GatheredParameters(parameters):
            least.append([float(parameter.detach().min()) for parameter in parameters])
    return least


def own_weights(optimizer):
    names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
    return next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))


def find(context, rank):
    one = Rank(context)
    one.step(lambda number: 1.0, micro_batches=200)
    norm = float(one.engine.get_global_grad_norm())
    before = one.weights()
    broken = one.try_step(lambda number: float("nan") if rank == 1 and number == 2 else 1.0)
    kept = one.weights() == before
    one.step(lambda number: 1.0, micro_batches=200)
    next_norm = float(one.engine.get_global_grad_norm())
    other = Rank(context)
    for group in other.engine.optimizer.optimizer.param_groups:
        group["lr"] = 3e37  # from here one step leaves float32, though the gradient is that of every step
    for part in own_weights(other.engine.optimizer):
        part.data.fill_(-3.3e38)
    overflow = other.try_step(lambda number: 1.0)
    return {"norm": norm, "nan": broken, "kept": kept, "next_norm": next_norm, "overflow": overflow}


if __name__ == "__main__":
    rank, port = sys.argv[1:]
    os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= openrlhf_cpu.ENVIRONMENT
    openrlhf_cpu.install()
    found = {context: find(context, int(rank)) for context in (2, 3)}
    print(json.dumps(found | {"gathered": gathered()}), flush=True)
