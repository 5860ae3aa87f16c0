"""Whole gates over simulated evidence: asked as a run asks, by the shipped stopping rules, and decided by the gate."""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.simulated_evidence import (
    NOT_SHOWN,
    Draws,
    Scenario,
    Shape,
    accuracy_measured,
    blocks_of,
    census,
    documents_measured,
    failures_measured,
)
from q36eval.gate import Criterion, CriterionResult, GateReport, Policy, PolicyRule, decide, with_integrity
from q36eval.gate.judgement import judge
from q36eval.gate.noise import NoiseFloor
from q36eval.records import Measurement, ProbeFailure, ProbeName
from q36eval.stats._margin import _Shortfall
from q36eval.stats._pairs import PairedProportions

LISTED_FLIPS = 0.03
"""A prompt above the reference's margin floor flips so much more rarely than a draw: half a flip in 858, where none was
seen, against 1 in 43 (benchmarks/README.md)."""

ASKINGS = 3
"""A must-pass flip counts when the prompt is wrong in its first batch and in both of those it is asked again in."""


@dataclass(frozen=True)
class Gate:
    """One gate: its report, the stage after which asking stopped (None: everything open was asked), and how much."""

    report: GateReport
    stopped: str | None
    items: Mapping[str, int]


@dataclass(frozen=True)
class Step:
    """What was measured up to one point at which asking may stop.

    The verdict may stand by `known`, with which the probe `complete` was asked whole; `beside` is measured too, but not
    looked at before its probe is complete.
    """

    name: str
    known: Sequence[Measurement]
    complete: ProbeName | None = None
    beside: Sequence[Measurement] = ()


@dataclass(frozen=True)
class Asking:
    """Gates of one scenario, asked in the order of a run: cheap evidence first, evals block by block.

    As `q36eval.run.rounds` does it: a task that is resolved early (`PolicyRule.resolved_early`) is asked no further,
    and asking stops once every lane has failed for good (`PolicyRule.decided`). With `exhaustive` everything is asked.
    """

    policy: Policy
    shape: Shape
    scenario: Scenario
    draws: Mapping[str, Draws]
    rng: np.random.Generator
    exhaustive: bool = False

    def gate(self, number: int) -> Gate:
        """Ask and decide."""
        rule = PolicyRule(self.policy)
        known: dict[str, Measurement] = {}
        measurements: dict[str, Measurement] = {}
        complete: set[ProbeName] = set()
        stopped = None
        for step in self._steps(number, rule):
            known |= {measurement.key: measurement for measurement in step.known}
            measurements |= known | {measurement.key: measurement for measurement in step.beside}
            complete |= set() if step.complete is None else {step.complete}
            if not self.exhaustive and rule.decided(list(known.values()), frozenset(complete)):
                stopped = step.name
                break
        failures = [
            ProbeFailure(probe=name, reason="the verdict stands", kind="skipped")
            for name in ProbeName
            if name not in complete
        ]
        report = decide(self.policy, list(measurements.values()), (), failures)
        items = {key: m.counts.total for key, m in measurements.items() if m.metric in ("accuracy", "failure_rate")}
        return Gate(report, stopped, items)

    def _steps(self, number: int, rule: PolicyRule) -> Iterator[Step]:
        of, tokens = self._criteria, sum(tokens for tokens, _ in self.shape.documents)
        yield Step("weights", [census(c, 0, 201) for c in of(ProbeName.WEIGHTS)], ProbeName.WEIGHTS)
        yield Step("must-pass", [self._must_pass(c) for c in of(ProbeName.CANARIES, "must_pass_flips")])
        rates = [*of(ProbeName.CANARIES, "failure_rate"), *of(ProbeName.CANARIES, "fixed_prompt_failure_rate")]
        failures = [failures_measured(c, self.draws[c.id], number) for c in rates]
        yield Step("canaries", failures, ProbeName.CANARIES)
        finite = [census(c, 0, tokens) for c in of(ProbeName.KL, "non_finite_tokens")]
        divergences = [documents_measured(c, self.draws[c.id], number) for c in of(ProbeName.KL, "kl_divergence")]
        yield Step("kl", [*finite, *divergences], ProbeName.KL)
        yield from self._evals(number, rule)

    def _evals(self, number: int, rule: PolicyRule) -> Iterator[Step]:
        """A step for every round: looks at the tasks of which more is planned, all that was measured after the last."""
        of = self._criteria
        tasks = of(ProbeName.EVALS, "accuracy")
        rounds = {task.id: blocks_of(self.draws[task.id].branch.shape[1])[-1] + 1 for task in tasks}
        final = [documents_measured(c, self.draws[c.id], number) for c in of(ProbeName.EVALS, "perplexity")]
        rounds_asked = 0
        while tasks:
            rounds_asked += 1
            looks = {task.id: accuracy_measured(task, self.draws[task.id], number, rounds_asked) for task in tasks}
            final += [looks[task.id] for task in tasks if rounds[task.id] == rounds_asked]
            ahead = [task for task in tasks if rounds[task.id] > rounds_asked]
            measurements = [looks[task.id] for task in ahead]
            settled: Collection[str] = () if self.exhaustive else rule.resolved_early(measurements)
            final += [looks[task.id] for task in ahead if task.key in settled]
            tasks = [task for task in ahead if task.key not in settled]
            beside = [measured for measured in final if measured.metric == "accuracy"]
            if any(count > rounds_asked for count in rounds.values()):
                yield Step(f"evals, round {rounds_asked}", measurements, beside=beside)
        yield Step("evals", final, ProbeName.EVALS)

    def _criteria(self, probe: ProbeName, metric: str | None = None) -> list[Criterion]:
        return [
            criterion
            for criterion in with_integrity(self.policy).criteria
            if criterion.tier == "blocking" and criterion.probe == probe and metric in (None, criterion.metric)
        ]

    def _must_pass(self, criterion: Criterion) -> Measurement:
        """Prompts that flip by chance, which most do in every batch that they are asked in; `flipped` ones always."""
        prompts = self.shape.must_pass[criterion.slice]
        flips = LISTED_FLIPS * self.scenario.flips / 2
        stays = self.scenario.persistence + (1.0 - self.scenario.persistence) * flips
        by_chance = self.rng.binomial(prompts - self.scenario.flipped, flips * stays ** (ASKINGS - 1))
        return census(criterion, self.scenario.flipped + int(by_chance), prompts)


@contextmanager
def shortcuts() -> Iterator[None]:
    """Spare what no verdict hangs on, many times over.

    What `judge` said of one piece of evidence is kept, for it is pure, and asked at a look, when asked whether the
    verdict stands, and in the decision. The bounds of a recovery and of a difference of rates, which a report shows
    beside the p-values that decide, are not looked for: a bisection takes 64 to 80 tests, a verdict two.
    """
    modules = [vars(sys.modules[name]) for name in ("q36eval.gate.decision", "q36eval.gate.sequential")]
    bound, interval = _Shortfall.recovery_bound, PairedProportions.interval
    for module in modules:
        module["judge"] = _remembered
    _Shortfall.recovery_bound = lambda *_, **__: 1.0  # type: ignore[method-assign]
    PairedProportions.interval = lambda *_: NOT_SHOWN  # type: ignore[method-assign]
    try:
        yield
    finally:
        _Shortfall.recovery_bound = bound  # type: ignore[method-assign]
        PairedProportions.interval = interval  # type: ignore[method-assign]
        for module in modules:
            module["judge"] = judge
        _judged.cache_clear()


@lru_cache(maxsize=2048)
def _judged(criterion: Criterion, measurement: Measurement, floor: NoiseFloor | None) -> CriterionResult:
    return judge(criterion, [measurement], [], floor)


def _remembered(
    criterion: Criterion, measurements: list[Measurement], failures: list[ProbeFailure], *rest: Any, **more: Any
) -> CriterionResult:
    if len(measurements) != 1 or failures or len(rest) > 1 or more:
        return judge(criterion, measurements, failures, *rest, **more)
    return _judged(criterion, measurements[0], *(rest or (None,)))
