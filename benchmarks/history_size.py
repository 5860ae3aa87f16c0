"""How large a big history is and how long its pages take: builds one, then times what the command line and pages ask.

    python -m benchmarks.history_size --runs 10000 --out FILE|URL

A run holds 200 measurements and 2,000 items, of texts like the sandbox's. Of each branch a new checkpoint comes every
`RERUNS` runs; runs of one checkpoint answer alike, as those of a deterministic engine do; a few reports
serve all.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection, insert

from q36eval.gate import Criterion, GateReport, Margin, Policy, decide
from q36eval.history import History, RunRecord, RunState
from q36eval.history import _tables as tables
from q36eval.history._runs import add_run
from q36eval.history._texts import json_values
from q36eval.history.store import item_rows, measurement_rows
from q36eval.records import (
    Answer,
    Clusters,
    Counts,
    DeploymentIdentity,
    Direction,
    Interval,
    ItemOutcome,
    Lane,
    Measurement,
    ProbeName,
)

BRANCHES = 20
RERUNS = 20
MEASUREMENTS, ITEMS, CLUSTERS = 200, 2_000, 60
WORDS = [
    "cena",
    "obchod",
    "sleva",
    "Plzeň",
    "Liberec",
    "město",
    "kraj",
    "řeka",
    "výpočet",
    "účet",
    "objednávka",
    "kolik",
    "je",
    "nejlevnější",
    "record",
    "total",
]
FAMILY = "sandbox"
METRICS = [f"accuracy_{number}" for number in range(MEASUREMENTS)]


@dataclass(frozen=True)
class Deployment:
    """What one checkpoint gave."""

    identity: DeploymentIdentity
    measurements: list[Measurement]
    outcomes: list[ItemOutcome]
    report: GateReport


def sentence(rng: random.Random, words: int) -> str:
    """Words of the sandbox's kind, with numbers among them."""
    return " ".join(rng.choice(WORDS) if rng.random() < 0.8 else str(rng.randrange(10_000)) for _ in range(words))


def questions(rng: random.Random) -> list[ItemOutcome]:
    """Items with their reference's side; every branch answers the same."""
    outcomes = []
    for number in range(ITEMS):
        canary = number >= 1_300
        detail = {"failures": [], "finish_reason": "stop"} if canary else likelihoods(rng)
        prompt = f"<|im_start|>user\n{sentence(rng, 60)}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        answer = sentence(rng, 25) if canary else rng.choice("ABCD")
        grouping = {
            "group": f"canary-{number % 30}" if canary else f"task-{number % 20}",
            "cluster": f"cluster {number}",
        }
        outcomes.append(
            ItemOutcome(
                probe=ProbeName.CANARIES if canary else ProbeName.EVALS,
                item_key=f"{rng.getrandbits(256):064x}",
                prompt=prompt,
                expected=answer,
                must_pass=canary and number % 10 == 0,
                reference=Answer(score=1.0 if rng.random() < 0.9 else 0.0, text=answer, detail=detail),
                branch=Answer(score=None),
                **grouping,
            )
        )
    return outcomes


def likelihoods(rng: random.Random) -> dict[str, object]:
    """Figures of a multiple choice, different for every checkpoint."""
    values = {choice: -rng.expovariate(0.2) for choice in "ABCD"}
    return {"log_likelihoods": values, "margin_nats": max(values.values()) - min(values.values())}


def answered(item: ItemOutcome, rng: random.Random) -> ItemOutcome:
    """What a checkpoint says: a canary mostly what the reference said, a choice always with figures of its own."""
    same = rng.random() < 0.97
    score = item.reference.score if same else rng.choice((0.0, 1.0))
    if item.probe is ProbeName.EVALS:
        text = item.reference.text if same else rng.choice("ABCD")
        branch = Answer(score=score, text=text, detail=likelihoods(rng))
    else:
        text = item.reference.text if same else sentence(rng, 25)
        branch = Answer(score=score, text=text, detail=item.reference.detail)
    return item.model_copy(update={"branch": branch})


def measurement(metric: str, rng: random.Random) -> Measurement:
    """A paired figure over clusters with names."""
    reference = tuple(float(rng.random() < 0.9) for _ in range(CLUSTERS))
    branch = tuple(value if rng.random() < 0.97 else 1.0 - value for value in reference)
    effect = (sum(branch) - sum(reference)) / CLUSTERS
    return Measurement(
        probe=ProbeName.EVALS,
        metric=metric,
        unit="fraction",
        direction=Direction.HIGHER_IS_BETTER,
        estimator="paired_mean",
        value=sum(branch) / CLUSTERS,
        reference_value=sum(reference) / CLUSTERS,
        effect=effect,
        effect_interval=Interval(lower=effect - 0.05, upper=effect + 0.05, level=0.95, method="bootstrap-t"),
        counts=Counts(total=CLUSTERS, scored=CLUSTERS, errored=0),
        clusters=Clusters(
            units=(1,) * CLUSTERS,
            branch=branch,
            reference=reference,
            errored=(0,) * CLUSTERS,
            bounds=(-1.0, 1.0),
            names=tuple(f"{metric}/{number}" for number in range(CLUSTERS)),
        ),
    )


def policy() -> Policy:
    """Twenty criteria over twenty of the metrics."""
    return Policy(
        name="release",
        criteria=tuple(
            Criterion(
                id=metric,
                probe=ProbeName.EVALS,
                metric=metric,
                margin=Margin(kind="min_recovery", value=0.8, source="benchmark"),
                lanes=(Lane.STRUCTURED if number % 2 else Lane.FREEFORM,),
            )
            for number, metric in enumerate(METRICS[:20])
        ),
    )


def identity(checkpoint: str) -> DeploymentIdentity:
    """A deployment of that checkpoint."""
    same = {"tokenizer_sha256": "bb" * 32, "chat_template_sha256": "cc" * 32, "engine": "in-process"}
    return DeploymentIdentity(checkpoint_sha256=checkpoint, engine_version="5.17.0", settings={"dtype": "bf16"}, **same)


def deployments(rng: random.Random, count: int) -> Iterator[Deployment]:
    """Checkpoints of one suite."""
    items, reports, rules = questions(rng), [], policy()
    for _ in range(count):
        measured = [measurement(metric, rng) for metric in METRICS]
        if len(reports) < 8:
            reports.append(decide(rules, measured))
        outcomes = [answered(item, rng) for item in items]
        yield Deployment(identity(f"{rng.getrandbits(256):064x}"), measured, outcomes, rng.choice(reports))


def build(history: History, runs: int, seed: int = 8) -> None:
    """Fill an empty history."""
    rng, rules = random.Random(seed), json_values(policy())
    started, written = datetime(2024, 1, 1, tzinfo=UTC), 0
    for number, deployment in enumerate(deployments(rng, -(-runs // RERUNS))):
        with history._write() as connection:
            rows = None
            for again in range(min(RERUNS, runs - written)):
                # checkpoints of all branches come side by side, as they do where every branch is gated every night
                at = started + timedelta(hours=(number // BRANCHES * RERUNS + again) * 24, minutes=number % BRANCHES)
                run = add_run(connection, record(f"branch-{number % BRANCHES:02d}", at, rng, deployment, rules))
                rows = rows or rows_of(connection, deployment)
                write(connection, run, *rows)
                written += 1


def record(
    branch: str, at: datetime, rng: random.Random, deployment: Deployment, rules: dict[str, object]
) -> RunRecord:
    """A finished run of a deployment."""
    return RunRecord(
        id=f"{at:%Y%m%d-%H%M%S}-{rng.getrandbits(24):06x}",
        family=FAMILY,
        branch=branch,
        identity=deployment.identity,
        reference_identity=identity("aa" * 32),
        policy=rules,
        suites={"evals": "dd" * 32, "canaries": "ee" * 32},
        provenance={"git_commit": f"{rng.getrandbits(160):040x}", "git_dirty": False, "max_items": "all"},
        state=RunState.FINISHED,
        started=at,
        finished=at + timedelta(minutes=6),
        verdict=deployment.report.verdict,
        report=deployment.report,
        timings={"set-up": rng.random() * 9, "evals": rng.random() * 300},
    )


Rows = list[dict[str, object]]


def rows_of(connection: Connection, deployment: Deployment) -> tuple[Rows, Rows]:
    """Rows of its measurements and items, by the history's own functions; of its runs only the number differs."""
    measured = measurement_rows(connection, 0, deployment.measurements)
    items = sorted(item_rows(connection, 0, deployment.outcomes), key=lambda row: row["asked"])
    return placed(measured), placed(items)


def placed(rows: Rows) -> Rows:
    """Rows in the order in which they were written."""
    return [{**row, "position": position} for position, row in enumerate(rows)]


def write(connection: Connection, run: int, measured: Rows, items: Rows) -> None:
    """The rows of one run."""
    for row in (*measured, *items):
        row["run"] = run
    connection.execute(insert(tables.measurements), measured)
    connection.execute(insert(tables.items), items)


def pages(history: History) -> dict[str, Callable[[], object]]:
    """What a person waits for."""
    branch, run = "branch-07", history.summaries(limit=1)[0].id
    keys = [f"evals.{metric}[all]" for metric in METRICS[:8]]
    return {
        "list page (50 runs, and how many there are)": lambda: (history.summaries(limit=50), history.count_runs()),
        "list page, the last one": lambda: history.summaries(limit=50, offset=history.count_runs() - 50),
        "branches": history.branches,
        "show one run": lambda: (history.get_run(run), history.measurements(run), history.failures(run)),
        "metrics of a branch": lambda: history.metric_keys(branch, FAMILY),
        "series of 8 metrics of a branch": lambda: history.metric_series(branch, FAMILY, keys),
        "items page (50 of 2,000)": lambda: history.items(run, limit=50, offset=1_000),
        "items page of one canary": lambda: history.items(run, ProbeName.CANARIES, "canary-7", limit=50),
        "flips page": lambda: (
            history.items(run, flips_only=True, limit=50),
            history.count_items(run, flips_only=True),
        ),
    }


def median_ms(call: Callable[[], object], times: int = 9) -> float:
    """Wall time of one call in milliseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(1_000 * (time.perf_counter() - started))
    return statistics.median(taken)


def main() -> None:
    """Build what is not there yet, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--out", default="history-size.sqlite", help="a file, or the URL of an empty database")
    arguments = parser.parse_args()
    history = History.open(arguments.out)
    if history.count_runs() == 0:
        started = time.monotonic()
        build(history, arguments.runs)
        print(f"built in {time.monotonic() - started:.0f} s")
    if Path(arguments.out).exists():
        size, runs = Path(arguments.out).stat().st_size, history.count_runs()
        print(f"{runs} runs take {size / 2**20:.0f} MiB, {size / runs / 2**10:.0f} KiB each")
    for name, call in pages(history).items():
        print(f"{median_ms(call):7.1f} ms  {name}", flush=True)


if __name__ == "__main__":
    main()
