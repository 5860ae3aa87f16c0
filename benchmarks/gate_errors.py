"""How often whole gates err, by simulation: every criterion, correlated, asked sequentially and decided by the gate.

`python -m benchmarks.gate_errors --gates 5000 --processes 16 --json gate_errors.json` prints a Markdown table and
writes everything it counted. `--only 'three|fault'` keeps the rows whose name that regular expression finds;
`--exhaustive` also decides every gate with all of its items asked and counts where the two verdicts differ.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulated_evidence import SHAPE, Draws, Scenario, Shape, draw_gates
from benchmarks.simulated_gates import Asking, Gate, shortcuts
from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from q36eval.stats import proportion_interval

POLICY = Path(__file__).parents[1] / "data" / "policies" / "sandbox.yaml"
CHUNK = 250
"""Gates drawn together, whose criteria are matched by rank."""

BARS = {
    "identical": (("FAIL", "at most", 0.01), ("PASS", "at least", 0.95)),
    "at the margin": (("PASS", "at most", 0.05),),
    "three margins worse": (("FAIL", "at least", 0.95),),
    "one fault": (("FAIL", "at least", 1.0),),
}
"""What must hold of each kind of branch."""

FLIPS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06)


def scenarios(policy: Policy) -> Iterator[Scenario]:
    """The rows of the table."""
    sampled = [c.id for c in policy.criteria if c.tier == "blocking" and c.margin.kind != "max_count"]
    for flips in FLIPS:
        yield Scenario(f"no loss, {flips:.0%} flips", "identical", flips)
    yield Scenario("no loss, 4% flips, criteria err independently", "identical", 0.04, shift=0.0)
    yield Scenario("no loss, 4% flips, criteria err alike", "identical", 0.04, shift=0.9)
    yield Scenario("no loss, 2% flips, divergences as measured", "identical", 0.02, kl_sigma=None)
    for name in sampled:
        for flips in (0.01, 0.06):
            yield Scenario(f"{name} at its margin, {flips:.0%} flips", "at the margin", flips, {name: 1.0})
    if "kl" in sampled:
        for words, sigma in (("as measured", None), ("lognormal 1.2", 1.2)):
            name = f"kl at its margin, divergences {words}"
            yield Scenario(name, "at the margin", 0.01, {"kl": 1.0}, kl_sigma=sigma)
    for name in sampled:
        for flips in (0.01, 0.02, 0.04, 0.06):
            yield Scenario(f"{name} three margins, {flips:.0%} flips", "three margins worse", flips, {name: 3.0})
    yield Scenario("all three margins, 2% flips", "three margins worse", 0.02, dict.fromkeys(sampled, 3.0))
    yield Scenario("one prompt of each must-pass set flipped, 1% flips", "one fault", 0.01, flipped=1)


@dataclass
class Tally:
    """What was counted over gates. `own` are verdicts of the criteria that lost something."""

    gates: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    lanes: Counter[str] = field(default_factory=Counter)
    criteria: Counter[str] = field(default_factory=Counter)
    own: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    exhaustive: Counter[str] = field(default_factory=Counter)
    correlations: float = 0.0

    def add(self, gate: Gate, losing: Mapping[str, float]) -> None:
        """Count one gate."""
        report = gate.report
        self.gates += 1
        self.verdicts[str(report.verdict)] += 1
        self.lanes.update(f"{lane.lane} {lane.verdict}" for lane in report.lanes)
        self.criteria.update(f"{result.id} {result.verdict}" for result in report.criteria if result.tier == "blocking")
        self.own.update(f"{result.id} {result.verdict}" for result in report.criteria if result.id in losing)
        self.stopped[gate.stopped or "nothing left to ask"] += 1
        self.asked.update(gate.items)

    def __iadd__(self, other: "Tally") -> "Tally":
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, mine + value)
        return self


@dataclass(frozen=True)
class Chunk:
    """Some gates of one scenario."""

    policy: Policy
    scenario: Scenario
    gates: int
    seed: tuple[int, int]
    exhaustive: bool = False
    short: bool = True
    shape: Path = SHAPE


def run_chunk(chunk: Chunk) -> Tally:
    """Draw, ask and decide."""
    with shortcuts() if chunk.short else nullcontext():
        return _run_chunk(chunk)


def _run_chunk(chunk: Chunk) -> Tally:
    shape, seed = Shape.load(chunk.shape), list(chunk.seed)
    draws = draw_gates(chunk.policy, shape, chunk.scenario, chunk.gates, seed)
    tally = Tally(correlations=chunk.gates * mean_correlation(draws))
    askings = [
        Asking(chunk.policy, shape, chunk.scenario, draws, np.random.default_rng([*seed, 1]), exhaustive)
        for exhaustive in ([False, True] if chunk.exhaustive else [False])
    ]
    for number in range(chunk.gates):
        gates = [asking.gate(number) for asking in askings]
        tally.add(gates[0], chunk.scenario.losses)
        if chunk.exhaustive:
            tally.exhaustive[" then ".join(str(gate.report.verdict) for gate in gates)] += 1
    return tally


def mean_correlation(draws: Mapping[str, Draws]) -> float:
    """Of the losses that two criteria's samples show, the mean over all pairs that vary."""
    losses = [each.losses for each in draws.values() if each.losses.std() > 0]
    if len(losses) < 2 or losses[0].size < 2:
        return 0.0
    matrix = np.atleast_2d(np.corrcoef(losses))
    return float(matrix[np.triu_indices_from(matrix, 1)].mean())


def interval(count: int, gates: int) -> tuple[float, float]:
    """Exact 95 % interval of a share (`proportion_interval`)."""
    bounds = proportion_interval(count, gates)
    return bounds.lower, bounds.upper


def holds(scenario: Scenario, tally: Tally) -> str:
    """`yes` where the 95 % intervals lie within every bar, `no` where one lies beyond, else `open`."""
    answers = set()
    for verdict, sense, bar in BARS[scenario.kind]:
        count = tally.verdicts[verdict]
        low, high = interval(count, tally.gates)
        if bar == 1.0:
            answers.add("yes" if count == tally.gates else "no")
        elif sense == "at most":
            answers.add("yes" if high <= bar else "no" if low > bar else "open")
        else:
            answers.add("yes" if low >= bar else "no" if high < bar else "open")
    return next(answer for answer in ("no", "open", "yes") if answer in answers)


def row(scenario: Scenario, tally: Tally) -> str:
    """One line of the table."""
    shares = " | ".join(_share(tally.verdicts[verdict], tally.gates) for verdict in ("PASS", "FAIL", "INCONCLUSIVE"))
    return f"| {scenario.name} | {shares} | {_who(scenario, tally)} | {holds(scenario, tally)} |"


def _share(count: int, gates: int) -> str:
    low, high = interval(count, gates)
    return f"{100 * count / gates:.2f} ({100 * low:.2f} to {100 * high:.2f})"


def _who(scenario: Scenario, tally: Tally) -> str:
    """Of the criteria that lost something their own verdicts, else those that kept a branch from passing."""
    if len(scenario.losses) == 1:
        return ", ".join(
            f"{verdict} {100 * tally.own[key] / tally.gates:.2f}"
            for key in sorted(tally.own)
            for verdict in [key.split()[-1]]
        )
    not_passed = Counter(
        {key: n for key, n in tally.criteria.items() if not key.endswith((" PASS", " NOT_MEASURED")) and n}
    )
    return ", ".join(f"{key} {100 * n / tally.gates:.2f}" for key, n in not_passed.most_common(4)) or "–"


HEADER = "| branch | PASS, % | FAIL, % | INCONCLUSIVE, % | the criterion itself, or who kept it from PASS, % | holds |"


def simulate(arguments: argparse.Namespace) -> None:
    """Every scenario; prints its row, and writes all rows so far, as it is done."""
    policy = read_policy(arguments.policy)
    chosen = [(n, s) for n, s in enumerate(scenarios(policy)) if re.search(arguments.only, s.name)]
    print(
        f"{policy.name}: {arguments.gates:,} gates a row, exact 95 % intervals in brackets\n\n{HEADER}\n|{'---|' * 6}"
    )
    rows: list[dict[str, Any]] = []
    results = {"policy": policy.name, "seed": arguments.seed, "environment": environment(), "rows": rows}
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # of the processes to come: one core each
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for number, scenario in chosen:
            began, tally = time.monotonic(), Tally()
            for part in pool.imap_unordered(run_chunk, _chunks(policy, number, scenario, arguments)):
                tally += part
            print(row(scenario, tally), flush=True)
            rows.append(_kept(scenario, tally, time.monotonic() - began))
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _chunks(policy: Policy, number: int, scenario: Scenario, arguments: argparse.Namespace) -> Iterator[Chunk]:
    for part, start in enumerate(range(0, arguments.gates, CHUNK)):
        gates = min(CHUNK, arguments.gates - start)
        yield Chunk(
            policy, scenario, gates, (arguments.seed + number, part), arguments.exhaustive, shape=arguments.shape
        )


def _kept(scenario: Scenario, tally: Tally, seconds: float) -> dict[str, Any]:
    counted = {name: dict(sorted(value.items())) for name, value in vars(tally).items() if isinstance(value, Counter)}
    items = {key: count / tally.gates for key, count in sorted(tally.asked.items())}
    return {
        "scenario": asdict(scenario),
        "gates": tally.gates,
        "holds": holds(scenario, tally),
        "intervals": {name: interval(tally.verdicts[name], tally.gates) for name in ("PASS", "FAIL", "INCONCLUSIVE")},
        "mean_correlation_of_losses": tally.correlations / tally.gates,
        "seconds": round(seconds, 1),
        **counted,
        "asked": items,  # items a gate, on average
    }


def environment() -> dict[str, str]:
    """Where the figures were made."""
    import scipy

    versions = {"python": sys.version.split()[0], "numpy": np.__version__, "scipy": scipy.__version__}
    return versions | {"machine": platform.machine(), "cores": str(os.cpu_count())}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=5_000, help="gates a row")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--policy", type=Path, default=POLICY)
    parser.add_argument("--shape", type=Path, default=SHAPE, help="how much is asked, as gate_shape.json says it")
    parser.add_argument("--only", default="", help="the branches whose name this regular expression finds")
    parser.add_argument("--seed", type=int, default=20_261_122)
    parser.add_argument("--exhaustive", action="store_true", help="also decide each gate with everything asked")
    parser.add_argument("--json", type=Path, help="where to write everything that was counted")
    simulate(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
