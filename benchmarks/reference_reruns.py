"""The sandbox's reference gated against itself, under every perturbation that moves it: is it ever failed?
from q36eval.probes import Progress

`python -m benchmarks.reference_reruns --runs 50 --processes 8 --out DIR` captures the reference once, plainly, on the
CPU; then every run computes the same weights otherwise and goes through the whole gate, all of its items asked. A run
that was written to DIR is not made again, so that the command may be repeated until all are there. It prints which
verdicts came out and what moved. On the CPU a run takes some minutes of one core.

What changes: how sequences are batched and padded and by which kernels they are scored (`q36eval.engines.perturbed`),
by which kernels and in batches of how many rows answers are generated, and where there is a GPU the device.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.probes import Progress

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

    from q36eval.config import Paths
    from q36eval.engines.resident import ResidentEngine
    from q36eval.history import History, RunRecord
    from q36eval.run.request import Request

REFERENCE = "bf16"
SCORING = ("as it is", "left padding", "every document alone", "other batches", "bf16 logits", "shuffled batches")
ROWS = (None, 1, 3, 8, 32, 96)
"""Answers that are generated together at most; None leaves that to the engine."""

FIGURES = ("kl.kl_divergence[all]", "kl.kl_max[all]", "kl.top1_agreement[all]", "evals.perplexity[all]")
"""Measurements whose effects are kept."""

NEEDED = ("sqlalchemy", "alembic", "pyarrow", "transformers", "lm_eval", "datasets")


@dataclass(frozen=True)
class Rerun:
    """One way to compute the reference. `plain` takes transformers' plain attention and experts, answers included."""

    number: int
    scoring: str
    rows: int | None
    plain: bool
    device: str

    @property
    def name(self) -> str:
        """In words."""
        rows = "the engine's rows" if self.rows is None else f"{self.rows} rows"
        kernels = "plain kernels" if self.plain else "fused kernels"
        return f"{self.scoring}, answers in {rows}, {kernels}, {self.device}"


def reruns(count: int, devices: Sequence[str]) -> list[Rerun]:
    """So many different ones, the reference as it is first.

    In seeded order; where there are no more, `shuffled batches`, which differ with the number.
    """
    every = [
        (scoring, rows, plain, device)
        for scoring in SCORING
        for rows in ROWS
        for plain in (False, True)
        for device in devices
    ]
    unperturbed = every[0]
    rest = every[1:]
    random.Random(7).shuffle(rest)
    shuffled = [each for each in rest if each[0] == SCORING[-1]]
    chosen = [unperturbed, *rest, *(shuffled[at % len(shuffled)] for at in range(max(0, count - len(every))))]
    return [Rerun(number, *each) for number, each in enumerate(chosen[:count])]


def perturbed(engine: "ResidentEngine", rerun: Rerun) -> "ResidentEngine":
    """The same weights, computed as `rerun` says."""
    from q36eval.engines.resident import ResidentEngine

    kind = _scoring(rerun)
    if rerun.plain:
        kind = type("Plain", (_plain_answers(), kind), {})
    assert issubclass(kind, ResidentEngine)
    return kind(engine.model, engine.tokenizer, engine.identity, batch_rows=rerun.rows)


def _scoring(rerun: Rerun) -> "type[ResidentEngine]":
    from q36eval.engines.perturbed import InOtherCompany, LeftPadded, OneByOne, RoundedLogits
    from q36eval.engines.resident import ResidentEngine

    kinds: dict[str, type[ResidentEngine]] = {
        "as it is": ResidentEngine,
        "left padding": LeftPadded,
        "every document alone": OneByOne,
        "other batches": InOtherCompany,
        "bf16 logits": RoundedLogits,
        "shuffled batches": _shuffled(rerun.number),
    }
    return kinds[rerun.scoring]


def _shuffled(seed: int) -> "type[ResidentEngine]":
    """Batches of other size and company for every seed; what shares a group and a prefix still does."""
    from q36eval.engines.base import ScoreRequest
    from q36eval.engines.batches import scoring_batches
    from q36eval.engines.resident import ResidentEngine

    class Shuffled(ResidentEngine):
        def _score_batches(self, requests: list[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
            rng = random.Random(f"{seed} {len(requests)}")
            for batch in scoring_batches(requests, rng.choice((512, 1024, 3072))):
                rng.shuffle(batch)
                cut = rng.randint(0, len(batch))
                yield from (part for part in (batch[:cut], batch[cut:]) if part)

    return Shuffled


def _plain_answers() -> "type[ResidentEngine]":
    """Plain kernels for scoring, as `OtherKernels`, and for answers too."""
    from q36eval.engines.base import Generated, GenerationRequest
    from q36eval.engines.perturbed import OtherKernels, _plain_kernels

    class PlainAnswers(OtherKernels):
        def _generate_batch(self, batch: Sequence[GenerationRequest]) -> list[Generated]:
            with _plain_kernels(self._model):
                return super()._generate_batch(batch)

    return PlainAnswers


class Quiet(Progress):
    """Progress that nobody follows."""

    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


@dataclass(frozen=True)
class Asked:
    """What every run asks, and the folder `out` that holds its result and the reference's captures."""

    out: Path
    exhaustive: bool
    max_items: int | None
    draws: int | None
    probes: tuple[str, ...]

    def file(self, rerun: Rerun) -> Path:
        """Where the result of that run is kept."""
        return self.out / f"run-{rerun.number:03d}.json"


def _request(setup: Asked, paths: "Paths") -> "Request":
    from q36eval.app.cli.gate import load_policy
    from q36eval.app.targets import load_family, resolve
    from q36eval.records import ProbeName
    from q36eval.run.request import CanaryChoice, Request

    family = load_family(None, paths)
    target = resolve(REFERENCE, family, paths)
    return Request(
        family=family,
        branch=target,
        reference=target,
        suite=family.suite,
        policy=load_policy(None, family, paths),
        probes=tuple(ProbeName(name) for name in setup.probes),
        exhaustive=setup.exhaustive,
        max_items=setup.max_items,
        canaries=CanaryChoice(draws=setup.draws),
    )


def gated(setup: Asked, rerun: Rerun) -> dict[str, Any]:
    """The gate of `app.measuring`, in which the branch is the engine of `rerun`; its history is not kept."""
    from q36eval.config import Paths
    from q36eval.engines import EngineSettings
    from q36eval.history import History
    from q36eval.run import branch as running
    from q36eval.run import measure as measuring

    paths = Paths(Paths.default().repository, setup.out / "state")
    load = running.open_engine

    def load_perturbed(settings: EngineSettings) -> "ResidentEngine":
        return perturbed(load(replace(settings, device=rerun.device)), rerun)

    with tempfile.TemporaryDirectory() as folder:
        history = History.open(Path(folder) / "history.sqlite")
        running.open_engine = load_perturbed
        began = time.monotonic()
        try:
            run = measuring.measure(_request(setup, paths), paths, history, Quiet())
            shutil.rmtree(paths.tokens(run.id), ignore_errors=True)  # megabytes a run, and not looked at
            return found_in(run, history, rerun, time.monotonic() - began)
        finally:
            running.open_engine = load
            history.close()


def found_in(run: "RunRecord", history: "History", rerun: Rerun, seconds: float) -> dict[str, Any]:
    """What is kept of a run: its verdicts, and what moved."""
    assert run.report is not None
    outcomes = list(history.items(run.id))
    measured = {measurement.key: measurement for measurement in history.measurements(run.id)}
    flips = Counter(f"{outcome.probe} {outcome.group} {outcome.flip}" for outcome in outcomes if outcome.flip)
    changed = Counter(str(outcome.probe) for outcome in outcomes if outcome.branch.text != outcome.reference.text)
    return {
        "rerun": asdict(rerun),
        "name": rerun.name,
        "verdict": str(run.report.verdict),
        "lanes": {str(lane.lane): str(lane.verdict) for lane in run.report.lanes},
        "not_passed": {c.id: f"{c.verdict}: {c.reason}" for c in run.report.criteria if c.verdict != "PASS"},
        "failures": [failure.model_dump(mode="json") for failure in run.report.failures],
        "items": dict(Counter(str(outcome.probe) for outcome in outcomes)),
        "texts_changed": dict(changed),
        "flips": dict(sorted(flips.items())),
        "effects": {key: measured[key].effect for key in FIGURES if key in measured},
        "must_pass": {key: m.value for key, m in measured.items() if "must_pass" in key},
        "seconds": round(seconds, 1),
    }


def one(setup: Asked, rerun: Rerun, threads: int | None = 1) -> dict[str, Any]:
    """One run, unless it was made before. With one thread the engine forks no workers either."""
    import torch

    kept = kept_of(setup, rerun)
    if kept is not None:
        return kept
    if threads is not None:
        torch.set_num_threads(threads)
    result = gated(setup, rerun)
    partly = setup.file(rerun).with_suffix(".part")
    partly.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partly.replace(setup.file(rerun))
    return result


def kept_of(setup: Asked, rerun: Rerun) -> dict[str, Any] | None:
    """The result of that very run, where it was made before."""
    if not setup.file(rerun).exists():
        return None
    kept: dict[str, Any] = json.loads(setup.file(rerun).read_text(encoding="utf-8"))
    return kept if kept["rerun"] == asdict(rerun) else None


HEADER = "| run | computed by | verdict | lanes | KL | greatest KL | texts changed | flips | seconds |"


def row(result: dict[str, Any]) -> str:
    """One run as a line of the table."""
    effects = result["effects"]
    kl, worst = (f"{effects[key]:.2g}" if key in effects else "–" for key in FIGURES[:2])
    lanes = ", ".join(f"{lane} {verdict}" for lane, verdict in result["lanes"].items())
    texts = ", ".join(f"{count} {probe}" for probe, count in sorted(result["texts_changed"].items())) or "none"
    flips = sum(result["flips"].values())
    cells = (
        result["rerun"]["number"],
        result["name"],
        result["verdict"],
        lanes,
        kl,
        worst,
        texts,
        flips,
        result["seconds"],
    )
    return f"| {' | '.join(map(str, cells))} |"


GROUPED = "| computed by | answers in rows of | runs | flips | texts changed | KL, nats per token |"


def grouped(results: Sequence[dict[str, Any]]) -> list[str]:
    """The table of benchmarks/README.md: what moved, by scoring, kernels and device."""
    groups: dict[tuple[str, bool, str], list[dict[str, Any]]] = {}
    for result in results:
        rerun = result["rerun"]
        groups.setdefault((rerun["scoring"], rerun["plain"], rerun["device"]), []).append(result)
    lines = [GROUPED, f"|{'---|' * 6}"]
    for (scoring, plain, device), runs in sorted(groups.items()):
        rows = {result["rerun"]["rows"] for result in runs}
        numbers = [*map(str, sorted(rows - {None})), *(["the engine's"] if None in rows else [])]
        cells = (
            f"{scoring}, {'plain' if plain else 'fused'} kernels, {'GPU' if device == 'cuda' else 'CPU'}",
            ", ".join(numbers),
            len(runs),
            _range([sum(result["flips"].values()) for result in runs], "{:d}"),
            _range([sum(result["texts_changed"].values()) for result in runs], "{:d}"),
            _range([result["effects"].get(FIGURES[0], float("nan")) for result in runs], "{:.1e}"),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _range(values: Sequence[float], shown: str) -> str:
    least, most = (shown.format(value) if value else "0" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What came of them all: verdicts, how many moved at all, and by how much at most."""
    from benchmarks.gate_errors import interval

    verdicts = Counter(result["verdict"] for result in results)
    moved = [r for r in results if r["flips"] or r["texts_changed"] or r["effects"].get(FIGURES[0], 0.0) > 0.0]
    return {
        "runs": len(results),
        "verdicts": dict(verdicts),
        "interval_of_failed": interval(verdicts["FAIL"], len(results)),
        "lanes": dict(Counter(f"{lane} {verdict}" for r in results for lane, verdict in r["lanes"].items())),
        "not_passed": dict(Counter(name for result in results for name in result["not_passed"])),
        "moved": len(moved),
        "moved_by": dict(Counter(result["rerun"]["scoring"] for result in moved)),
        "most_flips": max((sum(result["flips"].values()) for result in results), default=0),
        "flips": dict(sum((Counter(result["flips"]) for result in results), Counter())),
        "greatest_effects": {
            key: max((result["effects"][key] for result in results if key in result["effects"]), default=None)
            for key in FIGURES
        },
        "must_pass": dict(sum((Counter(result["must_pass"]) for result in results), Counter())),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, print all, and write `summary.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", action="append", help="cpu, cuda; all that are here")
    parser.add_argument("--sequential", action="store_true", help="stop as soon as a gate would")
    parser.add_argument("--probes", nargs="+", default=["weights", "canaries", "kl", "evals"])
    parser.add_argument("--max-items", type=int, help="of each eval task; for a trial")
    parser.add_argument("--draws", type=int, help="of each canary family; for a trial")
    given = parser.parse_args(arguments)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        sys.exit(f"This machine lacks {', '.join(missing)}; a gate needs them.")
    setup = Asked(given.out, not given.sequential, given.max_items, given.draws, tuple(given.probes))
    given.out.mkdir(parents=True, exist_ok=True)
    planned = reruns(given.runs, given.device or _devices())
    print(f"{HEADER}\n|{'---|' * 9}", flush=True)
    results = [one(setup, planned[0], None)]  # by all cores, since it captures the reference for all
    print(row(results[0]), flush=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come: one core each
    context = multiprocessing.get_context("spawn")
    gpus = _gpus() if "cuda" in {rerun.device for rerun in planned} else 0
    with ProcessPoolExecutor(given.processes, context, _take_a_gpu, (context.Value("i", 0), gpus)) as pool:
        for done in as_completed([pool.submit(one, setup, rerun) for rerun in planned[1:]]):
            results.append(done.result())
            print(row(results[-1]), flush=True)
    totals = summary(results)
    (given.out / "summary.json").write_text(json.dumps(totals, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(totals, indent=1))
    print("\n".join(grouped(results)))


def _devices() -> list[str]:
    return ["cpu", "cuda"] if _gpus() else ["cpu"]


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _take_a_gpu(started: "Synchronized[int]", gpus: int) -> None:
    """Where there are several, the processes take them by turns; torch looks at this when it first needs one."""
    if gpus > 1:
        with started.get_lock():
            os.environ["CUDA_VISIBLE_DEVICES"] = str(started.value % gpus)
            started.value += 1


if __name__ == "__main__":
    main()
