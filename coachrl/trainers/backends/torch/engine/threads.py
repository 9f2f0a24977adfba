"""How many threads a batch is generated with: torch's number, or one where other processes keep the processors busy.

The threads of a forward pass meet several hundred times, and each time all wait for the one that got no processor.
Beside busy neighbours two threads are therefore many times slower, where one thread is slower in proportion: beside one
on two processors two threads get 1.2 to 1.5 of them, much of it to wait in, and take twice as long as one. The
replies do not depend on the number of threads, so that a seeded run repeats whatever else the machine does. Updates
keep their threads: they meet less often, and gradients do depend on the number.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Both must hold before threads give way. With nobody beside them they compute or spin, and get all of a processor each;
# beside one busy process on two processors they got 0.6 to 0.75 of one each.
_ENOUGH = 0.8
_PREEMPTED_PER_S = 100  # beside one 120 to 210 times a second, alone 20 to 120 times
_SHORTEST_S = 0.02  # a shorter pass says nothing
_LONGEST_PAUSE = 32  # batches


class ThreadGovernor:
    """Remembers from batch to batch whether more than one thread pays."""

    def __init__(self) -> None:
        self._pause = 0  # batches for which one thread works alone
        self._next_pause = 1

    @contextmanager
    def batch(self) -> Iterator[None]:
        """The calling thread's number of threads is what it was when this ends."""
        wanted = torch.get_num_threads()
        if self._pause:
            self._pause -= 1
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if torch.get_num_threads() != wanted:
                torch.set_num_threads(wanted)

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """Inside is one forward pass; where its threads got too little, the rest of the batch and some batches after
        it have one thread, more of them each time that this happens again."""
        began, busy, preempted = time.perf_counter(), time.process_time(), _times_preempted()
        yield
        elapsed, threads = time.perf_counter() - began, torch.get_num_threads()
        if threads == 1 or elapsed < _SHORTEST_S:
            return
        # Threads that sleep where they wait, by a setting of OpenMP's, get less though nobody takes it from them.
        undisturbed = (_times_preempted() - preempted) / elapsed < _PREEMPTED_PER_S
        if undisturbed or (time.process_time() - busy) / elapsed >= _ENOUGH * threads:
            self._next_pause = 1
            return
        torch.set_num_threads(1)
        self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)


def _times_preempted() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
