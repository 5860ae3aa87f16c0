"""False alarms of `q36eval watch` over years of quiet rounds, and how long it takes to see damage of several sizes.

    python -m benchmarks.watch_simulation --years 64 --replicas 64

A year is 35,064 rounds, one every 15 minutes; each asks what a round asks by default, of 71 required prompts (the
sandbox's). Every replica draws its own calibration. `at the bound` loses exactly what is called quiet, which is the
worst that the promise allows; `as calibrated` loses at the true rates, and what is quiet is what its calibration found.
The years are computed by arrays, and the first rounds of one replica by the program's own `advance`: both must agree.
An opening is followed to its end by `advance` itself, with a sixth of the prompts answered wrong since the baseline.

The promise of openings needs that each item, whatever was seen before, is lost with a chance of at most what is called
quiet. `breaches` counts what happens where that holds on average alone: prompts that flip, and bad minutes in which all
fresh variants are lost. Delays are in intervals: what follows at once lies in the interval of the opening.
"""

import argparse
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from q36eval.watch.detector import SHARES, quiet_share
from q36eval.watch.incidents import (
    SLICES,
    STREAMS,
    Event,
    EventKind,
    Incident,
    Item,
    Phase,
    State,
    advance,
    evidence,
)
from q36eval.watch.service import AT_ONCE
from q36eval.watch.settings import Alarm, Amounts, Deployment

AT = datetime(2026, 1, 1, tzinfo=UTC)
ALARM, AMOUNTS = Alarm(), Amounts()
THRESHOLD = Deployment(name="quiet", branch="bf16").alarm_rounds
EVERY = timedelta(minutes=15)
N_PROMPTS = 71
WRONG = 12
"""Prompts that the baseline answers wrong, where an opening is followed."""
BEFORE = ALARM.calibration_rounds + 50
COUNTS = {"required": AMOUNTS.required, "families": AMOUNTS.families, "kl": AMOUNTS.kl, "differentials": 2}
TRUE = {"required": 0.005, "families": 0.01, "kl": 0.005, "differentials": 0.02}
"""Losses of a quiet deployment: more than was ever seen of the sandbox, which loses none."""
Floats = NDArray[np.float64]


@dataclass
class Quiet:
    """By stream, for each replica, what is called quiet [R], and at what rate items are lost [R]."""

    called: dict[str, Floats]
    lost: dict[str, Floats]


def quiet_of(kind: str, replicas: int, rng: np.random.Generator) -> Quiet:
    """What the replicas' calibrations found."""
    called = {"required": np.full(replicas, ALARM.quiet_floor)}
    rounds = ALARM.calibration_rounds
    items = {name: rounds * COUNTS[name] for name in ("families", "differentials")}
    items["kl"] = rounds * COUNTS["kl"] - ALARM.anchors  # each text is kept once before it is compared
    for name, count in items.items():
        lost = rng.binomial(count, TRUE[name], replicas) if name != "kl" else np.zeros(replicas, dtype=np.int64)
        called[name] = np.array([quiet_share(int(each), count, ALARM.quiet_floor) for each in lost])
    # beyond twice the greatest of a calibration's divergences fewer lie than beyond the greatest itself
    rates = {name: np.full(replicas, TRUE[name]) for name in called}
    rates["kl"] = rng.beta(1, items["kl"], replicas)
    return Quiet(called, {name: each.copy() for name, each in called.items()} if kind == "at the bound" else rates)


def log_bets(lost: Floats, count: Floats, quiet: Floats) -> Floats:
    """Of a round [..., K]."""
    shares = np.array(SHARES)
    gain = np.log1p(shares * (1.0 - quiet[..., None]) / quiet[..., None])
    return lost[..., None] * gain + (count - lost)[..., None] * np.log1p(-shares)


def years(kind: str, replicas: int, rounds: int, seed: int) -> tuple[NDArray[np.int64], int, float]:
    """Openings of each replica, how many were confirmed, and rounds watched, of so many replicas of so many rounds."""
    rng = np.random.default_rng(seed)
    quiet = quiet_of(kind, replicas, rng)
    names = list(COUNTS)
    counts = np.array([COUNTS[name] for name in names], dtype=np.float64)
    called = np.stack([quiet.called[name] for name in names], axis=1)
    rates = np.stack([quiet.lost[name] for name in names], axis=1)
    pooled = np.full((replicas, len(names), len(SHARES)), -np.inf)
    prompts = np.full((replicas, N_PROMPTS, len(SHARES)), -np.inf)
    suspects: list[set[int]] = [set() for _ in range(replicas)]
    weight = 1.0 / len(STREAMS)
    opened, confirmed = np.zeros(replicas, dtype=np.int64), 0
    floor = np.array(ALARM.quiet_floor)
    for number in range(rounds):
        turn = (number * AMOUNTS.required + np.arange(AMOUNTS.required)) % N_PROMPTS
        flips = rng.random((replicas, AMOUNTS.required)) < rates[:, :1]
        lost = rng.binomial(counts.astype(int), rates).astype(np.float64)
        lost[:, 0] = flips.sum(axis=1)
        pooled = np.logaddexp(pooled, 0.0) + log_bets(lost, counts, called)
        bets = log_bets(flips.astype(np.float64), np.ones(flips.shape), np.broadcast_to(floor, flips.shape))
        prompts[:, turn] = np.logaddexp(prompts[:, turn], 0.0) + bets
        for replica in range(replicas):
            again = [p for p in suspects[replica] if p not in turn]
            for prompt in again:
                flipped = rng.random() < rates[replica, 0]
                bet = log_bets(np.array(float(flipped)), np.array(1.0), floor)
                prompts[replica, prompt] = np.logaddexp(prompts[replica, prompt], 0.0) + bet
                if not flipped:
                    suspects[replica].discard(prompt)
            suspects[replica] = {p for p in suspects[replica] if p in again} | set(turn[flips[replica]].tolist())
        total = weight * np.exp(pooled).mean(axis=2).sum(axis=1) + weight * np.exp(prompts).mean(axis=2).mean(axis=1)
        for replica in np.flatnonzero(total >= THRESHOLD):
            opened[replica] += 1
            confirmed += followed(quiet, int(replica), pooled[replica], number, rng)
            pooled[replica], prompts[replica], suspects[replica] = -np.inf, -np.inf, set()
    return opened, confirmed, float(replicas * rounds)


def followed(quiet: Quiet, replica: int, pooled: Floats, number: int, rng: np.random.Generator) -> bool:
    """Whether a false opening is confirmed before it is dismissed; by the program's own steps."""
    loud = [name for name, logs in zip(COUNTS, pooled, strict=True) if np.exp(logs).mean() > THRESHOLD / 10]
    state = State(
        phase=Phase.OPENED,
        quiet={name: float(each[replica]) for name, each in quiet.called.items()},
        prompts={f"prompt-{place}": place >= WRONG for place in range(N_PROMPTS)},
        incident=Incident(id="i", opened=AT, streams=tuple(loud) or ("required",), prompts=(), seen=()),
    )
    rates = {name: float(each[replica]) for name, each in quiet.lost.items()}

    def items(state: State, again: int) -> list[Item]:
        drawn = items_of(rates, state.rounds, rng)
        wrong = {name for name, right in state.prompts.items() if not right}
        return [item.model_copy(update={"lost": True}) if item.name in wrong else item for item in drawn]

    for later in range(2_000):
        state, events = interval(state, later, items, begun=later == 0)
        for event in events:
            if event.kind is EventKind.CONFIRMED:
                return True
            if event.kind is EventKind.DISMISSED:
                return False
    return False


Asking = Callable[[State, int], list[Item]]
"""The items of a round in that state, the so-manieth of its interval, from 0."""


def interval(state: State, number: int, items: Asking, *, begun: bool = False) -> tuple[State, list[Event]]:
    """What a service does in one interval: a round, and up to `AT_ONCE` more where an incident is open.

    `begun`: the opening's round was already asked.
    """
    events = list[Event]()
    for again in range(int(begun), 1 + AT_ONCE):
        at = AT + number * EVERY + again * timedelta(minutes=1)
        state, new = advance(state, items(state, again), ALARM, THRESHOLD, at, all_seen=state.rounds >= 8)
        events += new
        if state.phase is not Phase.OPENED:
            break
    return state, events


def items_of(rates: dict[str, float], number: int, rng: np.random.Generator, broken: int | None = None) -> list[Item]:
    """A round's items at those rates of loss; all are fresh."""
    items = []
    for name in SLICES:
        for place in range(COUNTS[name]):
            prompt = (number * AMOUNTS.required + place) % N_PROMPTS
            key = f"prompt-{prompt}" if name == "required" else f"{name}-{number}-{place}"
            lost = bool(rng.random() < rates[name]) or (name == "required" and prompt == broken)
            items.append(Item(slice=name, name=key, lost=lost, fresh=True))
    return items


def repeated(state: State, items: list[Item], rng: np.random.Generator, rates: dict[str, float]) -> list[Item]:
    """The prompts that were lost last time or opened an incident, at a rate of their own, before the others."""
    first = [*state.suspects, *(() if state.incident is None else state.incident.prompts)]
    names = [name for name in dict.fromkeys(first) if all(item.name != name for item in items)][: AMOUNTS.suspects]
    lost = [bool(rng.random() < rates.get(name, 0.0)) for name in names]
    return [
        Item(slice="required", name=name, lost=each, suspect=True, fresh=True)
        for name, each in zip(names, lost, strict=True)
    ] + items


FLIPPING = {f"prompt-{place}": 0.25 for place in (3, 20, 41, 60)}
BREACHES: dict[str, tuple[dict[str, float], float, int]] = {
    "4 of 71 prompts flip 1 time in 4 (mean 1.4 %)": (FLIPPING, 0.0, 0),
    "all variants of a round are lost, 1 round in 200": ({}, 0.005, 1),
    "the same, 1 asking in 500, and in the one after it": ({}, 0.002, 2),
    "the same, 1 asking in 500, and in the four after it": ({}, 0.002, 5),
}
"""Losses that are rarer than is quiet on average and not at each time: rates by prompt; how often, and how long, a bad
time begins, in askings."""


def breaches(seed: int, deployments: int, intervals: int) -> list[str]:
    """What each kind of breach opens, confirms and dismisses, over all deployments."""
    lines = []
    none = dict.fromkeys(SLICES, 0.0)
    for words, (rates, chance, lasting) in BREACHES.items():
        seen, last = Counter[EventKind](), 0
        for deployment in range(deployments):
            rng = np.random.default_rng([seed, deployment])
            state, bad = State(), 0

            def items(
                state: State,
                again: int,
                rates: dict[str, float] = rates,
                rng: np.random.Generator = rng,
                chance: float = chance,
                lasting: int = lasting,
            ) -> list[Item]:
                nonlocal bad
                if bad == 0 and state.phase is not Phase.CALIBRATING and rng.random() < chance:
                    bad = lasting
                lost, bad = bad > 0, max(0, bad - 1)
                asked = items_of(none | {"families": float(lost)}, state.rounds, rng)
                asked = [
                    item.model_copy(update={"lost": bool(rng.random() < rates[item.name])})
                    if item.name in rates
                    else item
                    for item in asked
                ]
                return repeated(state, asked, rng, rates)

            # a calibration that saw them right by luck, as the worst case: prompts that were lost are not watched
            for number in range(ALARM.calibration_rounds):
                calm = items_of(none, state.rounds, rng)
                state, _ = advance(state, calm, ALARM, THRESHOLD, AT - (30 - number) * EVERY, all_seen=number >= 8)
            for number in range(intervals):
                state, events = interval(state, number, items)
                seen.update(event.kind for event in events)
                last = max([last, *(number for event in events if event.kind is EventKind.OPENED)])
        kinds = (EventKind.OPENED, EventKind.CONFIRMED, EventKind.DISMISSED)
        lines.append(f"| {words} | {' | '.join(str(seen[kind]) for kind in kinds)} | {last} |")
    return lines


def calibrated(rng: np.random.Generator, rates: dict[str, float]) -> State:
    """A state after its calibration and some quiet rounds."""
    state = State()
    for number in range(BEFORE):
        state, _ = advance(state, items_of(rates, number, rng), ALARM, THRESHOLD, AT, all_seen=number >= 8)
    return state


def agrees(seed: int) -> float:
    """How far the arrays are from `advance` after 300 rounds without losses: evidence on the log scale."""
    state = calibrated(np.random.default_rng(seed), dict.fromkeys(SLICES, 0.0))
    pooled = np.full((len(COUNTS), len(SHARES)), -np.inf)
    counts = np.array(list(COUNTS.values()), dtype=np.float64)
    called = np.array([state.quiet[name] for name in COUNTS])
    for number in range(300):
        if number >= ALARM.calibration_rounds:
            pooled = np.logaddexp(pooled, 0.0) + log_bets(np.zeros(len(COUNTS)), counts, called)
        if number >= BEFORE:
            items = items_of(dict.fromkeys(SLICES, 0.0), number, np.random.default_rng(0))
            state, _ = advance(state, items, ALARM, THRESHOLD, AT, all_seen=True)
    worst = 0.0
    for place, name in enumerate(COUNTS):
        ours = math.log(float(np.exp(pooled[place]).mean()))
        theirs = math.log(statistics.fmean(math.exp(log) for log in state.detectors[name]))
        worst = max(worst, abs(ours - theirs))
    assert evidence(state, THRESHOLD)["all"] < 1.0
    return worst


DAMAGES: dict[str, tuple[dict[str, float], int | None]] = {
    "every text moves, and half of the rest is lost": ({"kl": 1.0, "families": 0.5, "required": 0.5}, None),
    "every text moves": ({"kl": 1.0}, None),
    "half of the texts move": ({"kl": 0.5}, None),
    "a quarter of the texts move": ({"kl": 0.25}, None),
    "40 % of fresh variants are lost": ({"families": 0.4}, None),
    "20 % of fresh variants are lost": ({"families": 0.2}, None),
    "10 % of required prompts and variants are lost": ({"families": 0.1, "required": 0.1}, None),
    "every second differential differs": ({"differentials": 0.5}, None),
    "one required prompt breaks": ({}, 5),
}


def delays(seed: int, repeats: int, longest: int) -> list[str]:
    """By size of damage: intervals until it is opened and confirmed, median and 95 % quantile."""
    rng = np.random.default_rng(seed)
    quiet = dict.fromkeys(SLICES, 0.0)
    lines = []
    for words, (damage, broken) in DAMAGES.items():
        found: dict[EventKind, list[float]] = {EventKind.OPENED: [], EventKind.CONFIRMED: []}
        for _ in range(repeats):
            state, seen = calibrated(rng, quiet), set[EventKind]()
            first = BEFORE + int(rng.integers(N_PROMPTS))
            start = first - state.rounds

            def items(
                state: State,
                again: int,
                damage: dict[str, float] = damage,
                broken: int | None = broken,
                start: int = start,
            ) -> list[Item]:
                asked = items_of(quiet | damage, start + state.rounds, rng, broken)
                return repeated(state, asked, rng, {f"prompt-{broken}": 1.0})

            for number in range(first, first + longest):
                state, events = interval(state, number, items)
                for event in events:
                    if event.kind in found and event.kind not in seen:
                        seen.add(event.kind)
                        found[event.kind].append(number - first + 1)
                if EventKind.CONFIRMED in seen or (broken is not None and EventKind.OPENED in seen):
                    break
        cells = []
        for known in found.values():
            never = [math.inf] * (repeats - len(known))
            ordered = sorted([*known, *never])
            cells += [f"{ordered[len(ordered) // 2]:.0f}", f"{ordered[int(0.95 * len(ordered))]:.0f}"]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=float, default=64.0, help="in all, of each kind")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--breach-rounds", type=int, default=3_000, help="of each of 8 deployments")
    parser.add_argument("--seed", type=int, default=24)
    given = parser.parse_args()
    print(f"arrays against advance: {agrees(given.seed):.2g} apart", flush=True)
    rounds = round(given.years * THRESHOLD / given.replicas)
    print("| quiet | years | false openings | promised at most | of them confirmed | promised at most |", flush=True)
    for kind in ("at the bound", "as calibrated"):
        began = time.monotonic()
        opened, confirmed, watched = years(kind, given.replicas, rounds, given.seed)
        told = watched / THRESHOLD
        most = f"{told:.0f} | {confirmed} | {ALARM.false_confirmations:.0%}"
        worst = f"{opened.max()} of one deployment in {told / given.replicas:.1f} years"
        print(f"| {kind} | {told:.0f} | {opened.sum()} ({worst}) | {most} |", flush=True)
        print(f"({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
    print("| beyond the promise | opened | confirmed | dismissed | last opening in interval |", flush=True)
    for line in breaches(given.seed, 8, given.breach_rounds):
        print(line, flush=True)
    print("| damage | opened: median | 95 % | confirmed: median | 95 % |", flush=True)
    for line in delays(given.seed, given.repeats, 200):
        print(line, flush=True)


if __name__ == "__main__":
    main()
