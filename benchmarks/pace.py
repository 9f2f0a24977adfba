"""How much of what a provider takes is used, by the pace that is learned from its refusals? In simulated time.

    python benchmarks/pace.py [--seeds 6] [--minutes 10]

32 calls at once, each of 0.5 to 1 s, are 42 a second; a refusal comes back within 0.05 s. Printed are, for each
provider, the calls a second that it took over the whole time (least and most of the seeds), and the most requests for
each of them.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product

from coachrl.coach.clients.rate_limits import Pace

AT_ONCE, CALL_S, REFUSAL_S = 32, (0.5, 1.0), (0.0, 0.05)
LEAST_WAIT_S = 0.001  # what an event loop waits
CHANCES = (0.003, 0.01, 0.02, 0.05, 0.1, 1 / 7, 0.2, 1 / 3)
QUOTAS = (1, 3, 20)

Provider = Callable[[float], bool]  # time in s -> whether it takes the call


def by_chance(share: float, draw: random.Random) -> Provider:
    return lambda _: draw.random() >= share


def bucket(per_s: float, held: float, _: random.Random) -> Provider:
    """Takes per_s calls a second, and as many as `held` of those that were not asked for."""
    level, at_s = held, 0.0

    def takes(now_s: float) -> bool:
        nonlocal level, at_s
        level, at_s = min(held, level + (now_s - at_s) * per_s), now_s
        level -= (is_taken := level >= 1)
        return is_taken

    return takes


def window(per_s: float, window_s: float, _: random.Random) -> Provider:
    """Takes as many calls in each window as come to per_s a second."""
    number, taken = 0, 0

    def takes(now_s: float) -> bool:
        nonlocal number, taken
        if number != int(now_s / window_s):
            number, taken = int(now_s / window_s), 0
        taken += (is_taken := taken < per_s * window_s)
        return is_taken

    return takes


PROVIDERS: dict[str, Callable[[random.Random], Provider]] = {
    **{f"refuses {share:.1%} by chance": partial(by_chance, share) for share in CHANCES},
    **{f"{per_s} a second, bucket of a second": partial(bucket, per_s, per_s) for per_s in QUOTAS},
    **{f"{per_s} a second, bucket of ten": partial(bucket, per_s, 10 * per_s) for per_s in QUOTAS},
    **{f"{per_s} a second, window of a second": partial(window, per_s, 1.0) for per_s in QUOTAS},
    **{f"{per_s} a second, counted by the minute": partial(window, per_s, 60.0) for per_s in QUOTAS},
}


def taken_and_asked(name: str, retry_after_s: float | None, seed: int, seconds: float) -> tuple[int, int]:
    """Calls that the provider took, and requests, where there are always more calls to make."""
    draw, pace = random.Random(seed), Pace()
    takes = PROVIDERS[name](draw)
    in_flight: list[tuple[float, int, float | None]] = []  # when each ends, its number, and when it began if refused
    now_s, taken, asked, waited = 0.0, 0, 0, False
    while now_s < seconds:
        wait_s = pace.wait_s(now_s) if len(in_flight) < AT_ONCE else math.inf
        if wait_s <= LEAST_WAIT_S:
            pace.began(now_s, waited)
            is_taken, waited = takes(now_s), False
            asked, taken = asked + 1, taken + is_taken
            lasts_s = draw.uniform(*(CALL_S if is_taken else REFUSAL_S))
            heapq.heappush(in_flight, (now_s + lasts_s, asked, None if is_taken else now_s))
            continue
        waited = waited or wait_s < math.inf
        if not in_flight or now_s + wait_s < in_flight[0][0]:
            now_s += wait_s
            continue
        now_s, _, began_s = heapq.heappop(in_flight)
        if began_s is not None:
            pace.refused(began_s, now_s, retry_after_s)
    return taken, asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args()
    cases = list(product(PROVIDERS, (None, 1.0)))
    print("| provider | a refusal asks for | calls a second | requests a call |\n|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        futures = {
            case: [pool.submit(taken_and_asked, *case, seed, 60 * given.minutes) for seed in range(given.seeds)]
            for case in cases
        }
        for (name, wait_s), runs in futures.items():
            found = [run.result() for run in runs]
            rates = [taken / (60 * given.minutes) for taken, _ in found]
            most = max(asked / max(1, taken) for taken, asked in found)
            asks = "nothing" if wait_s is None else f"{wait_s:g} s"
            print(f"| {name} | {asks} | {min(rates):.1f} to {max(rates):.1f} | {most:.2f} |", flush=True)


if __name__ == "__main__":
    main()
