"""How often does a wrong answer stay wrong in other batches? And what zero tolerance over fixed prompts costs by that.

`python -m benchmarks.flip_persistence --out DIR` asks the sandbox's reference and its branches every canary in three
ways, as the gate asks a must-pass prompt: in the engine's own batches, among four, and alone. A question *flips* where
the reference is right in all three and the deployment wrong in its first asking; the flip *persists* where it is wrong
in both others too. The families' draws are asked beside the fixed prompts, of which too few flip. Beside each flip
stands the reference's least decisive margin, in nats: a floor of it is what admits a prompt to the absolute list.

The reference is also gated against itself: in batches of other sizes, and by transformers' plain kernels. A deployment
that was written to DIR is not asked again. `--simulate` needs no model: how often lists of fixed prompts fail a branch.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from q36eval.records import Clusters, Direction
from q36eval.stats import MarginKind, margin_test, proportion_interval

if TYPE_CHECKING:
    from q36eval.canaries.probe import CanaryProbe
    from q36eval.engines import Engine
    from q36eval.engines.base import Generated, GenerationRequest

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "bf16"
BRANCHES = ("main", "nvfp4-modelopt", "gptq-int4")
RUNGS = (3, 4)
"""Bits that the reference's experts are rounded to: further branches, made here."""

LISTED = ("discount-compare", "copy-exact", "json-flat", "tool-call", "enum-select")
"""Canaries of whose fixed twins the absolute list is made: all of their draws are asked."""

SAME_WEIGHTS_BELOW = 1.5
"""Nats: of the reference computed otherwise, which moves margins by hundredths, only what is nearer to a turn."""

FOUR = 4
MARGIN_BINS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
"""Lower ends, in nats, of the bins of the reference's least decisive margin; the first takes all below the next."""


# ---- what is asked of a deployment


@dataclass(frozen=True)
class Deployment:
    """One way to answer: a name, how its engine is made, and whether its weights are the reference's."""

    name: str
    load: "Callable[[], Engine]"
    same_weights: bool


def deployments() -> list[Deployment]:
    """The reference in other batches and by other kernels, then branches and rungs."""
    from benchmarks.reference_reruns import Rerun, perturbed

    def rerun(rows: int | None, plain: bool) -> Deployment:
        kernels = "plain kernels" if plain else "fused kernels"
        name = f"{REFERENCE}, {'the engine’s' if rows is None else rows} rows, {kernels}"
        how = Rerun(0, "as it is", rows, plain, "cpu")
        return Deployment(name, lambda: perturbed(_loaded(REFERENCE), how), same_weights=True)

    again = [rerun(None, True), rerun(8, False), rerun(8, True)]
    rungs = [Deployment(f"int{bits}-rung", lambda bits=bits: _rung(bits), same_weights=False) for bits in RUNGS]
    branches = [Deployment(name, lambda name=name: _loaded(name), same_weights=False) for name in BRANCHES]
    return [*branches, *again, *rungs]


def _loaded(name: str) -> "Engine":
    from q36eval.app.targets import load_family, resolve
    from q36eval.config import Paths
    from q36eval.engines import open_engine

    paths = Paths.default()
    return open_engine(resolve(name, load_family(None, paths), paths).folder)


def _rung(bits: int) -> "Engine":
    from benchmarks.sandbox.ladder import damage_experts

    engine = _loaded(REFERENCE)
    damage_experts(engine.model, bits)
    return engine


@dataclass(frozen=True)
class Questions:
    """All that is asked, by key: the request and whether it is a fixed prompt; `judge` scores an answer to it."""

    requests: "Mapping[str, GenerationRequest]"
    fixed: frozenset[str]
    names: Mapping[str, str]
    probe: "CanaryProbe"

    @classmethod
    def of(cls, tokenizer: Any, draws: int) -> "Questions":
        """The sandbox's canaries with so many draws of a family."""
        from q36eval.canaries.probe import MUST_PASS, CanaryProbe
        from q36eval.canaries.specification import load_specs

        probe = CanaryProbe(load_specs(n=draws, skills=()))
        items = probe.plan(tokenizer)
        requests = {item.key: replace(item.generations[0], group=item.stage) for item in items}
        fixed = frozenset(item.key for item in items if item.stage == MUST_PASS)
        return cls(requests, fixed, {item.key: probe._by_key[item.key][0].name for item in items}, probe)

    def scores(
        self, engine: "Engine", requests: "Sequence[GenerationRequest]", keep: "list[Generated] | None" = None
    ) -> dict[str, float | None]:
        """Score by request key; fillers, whose keys name no question, are left out. `keep` takes what was generated."""
        from q36eval.canaries.answers import judged_answer

        scores: dict[str, float | None] = {}
        for generated in engine.generate(requests):
            key = generated.request.key
            if key.count("/") < 2 and generated.error is None:
                case, _ = self.probe._by_key[key.partition("/")[0]]
                scores[key] = judged_answer(case, generated.text, generated.finish_reason, 0).score
                if keep is not None:
                    keep.append(generated)
        return scores

    def again(self, keys: Sequence[str]) -> "list[GenerationRequest]":
        """Each of them among four, with the questions planned after it, and alone."""
        every = list(self.requests)
        place = {key: at for at, key in enumerate(every)}
        requests = []
        for key in keys:
            for ending, rows in (("four", FOUR), ("alone", 1)):
                group = f"{ending}/{key}"
                requests.append(replace(self.requests[key], key=f"{key}/{ending}", group=group, shared=0))
                others = [self.requests[every[(place[key] + step) % len(every)]] for step in range(1, rows)]
                requests += [
                    replace(other, key=f"{key}/{ending}/{number}", group=group, shared=0)
                    for number, other in enumerate(others)
                ]
        return requests

    def margins(self, engine: "Engine", answers: "Sequence[Generated]") -> dict[str, float]:
        """The least decisive margin in nats of every answer that is right, by key; teacher-forced."""
        from q36eval.probes import ItemResults, WorkItem

        digests = {}
        for generated in answers:
            item = WorkItem(key=generated.request.key, generations=(generated.request,))
            results = ItemResults(generated={item.key: generated})
            digests[item.key] = self.probe.digest(engine, item, results)
        forced = [
            request
            for key, digest in digests.items()
            for request in self.probe.follow_up(WorkItem(key=key), digest).scores
        ]
        margins = {}
        for scored in engine.score(forced):
            key = scored.request.key.removesuffix("/taught")
            results = ItemResults(scored={scored.request.key: scored})
            taught = self.probe.digest_follow_up(engine, WorkItem(key=key), digests[key], results).values
            if taught.get("decisive"):
                margins[key] = min(taught["teacher"]["margins"])
        return margins


def asked_of(deployment: Deployment, out: Path, draws: int, below: float) -> dict[str, Any]:
    """Scores in the first asking of all, and in both others of what is wrong there and right under the reference."""
    file = out / f"{deployment.name.replace(' ', '-').replace(',', '').replace('’', '')}.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return kept
    base = reference(out, draws)
    began = time.monotonic()
    engine = deployment.load()
    questions = Questions.of(engine.tokenizer, draws)
    right = {key: nats for key, nats in base["margins"].items() if base["first"].get(key) == 1.0}
    if deployment.same_weights:
        chosen = {key for key, nats in right.items() if nats < SAME_WEIGHTS_BELOW}
    else:
        chosen = {key for key, nats in right.items() if nats < below or _listed(questions.names[key])}
    requests = [request for key, request in questions.requests.items() if key in chosen]
    first = questions.scores(engine, requests)
    wrong = [key for key, score in first.items() if score == 0.0 and base["first"].get(key) == 1.0]
    further = questions.scores(engine, questions.again(wrong))
    result = {
        "name": deployment.name,
        "same_weights": deployment.same_weights,
        "asked": [request.key for request in requests],
        "wrong": wrong,
        "again": {key: [further.get(f"{key}/four"), further.get(f"{key}/alone")] for key in wrong},
        "seconds": round(time.monotonic() - began, 1),
    }
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def reference(out: Path, draws: int) -> dict[str, Any]:
    """Its scores in the first asking, its margins, and which questions are fixed prompts."""
    file = out / "reference.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return kept
    began = time.monotonic()
    engine = _loaded(REFERENCE)
    questions = Questions.of(engine.tokenizer, draws)
    answers: list[Generated] = []
    result = {
        "first": questions.scores(engine, list(questions.requests.values()), answers),
        "margins": questions.margins(engine, answers),
        "fixed": sorted(questions.fixed),
        "names": questions.names,
        "seconds": round(time.monotonic() - began, 1),
    }
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def reference_again(out: Path, draws: int, keys: Sequence[str]) -> dict[str, list[float | None]]:
    """What the reference answers among four and alone to what flipped anywhere."""
    file = out / "reference-again.json"
    kept: dict[str, list[float | None]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    missing = [key for key in keys if key not in kept]
    if missing:
        engine = _loaded(REFERENCE)
        questions = Questions.of(engine.tokenizer, draws)
        further = questions.scores(engine, questions.again(missing))
        kept |= {key: [further.get(f"{key}/four"), further.get(f"{key}/alone")] for key in missing}
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return kept


# ---- what came of it


@dataclass(frozen=True)
class Flip:
    """A question that the reference answers right in all three askings, and the deployment wrong in its first.

    `again`: whether it is wrong among four, and alone. `nats`: the reference's least margin.
    """

    name: str
    again: tuple[bool, bool]
    nats: float


def flips_of(
    result: Mapping[str, Any], base: Mapping[str, Any], steady: Mapping[str, Sequence[float | None]]
) -> list[Flip]:
    """Of one deployment; what the reference fails in some batch, or what errored, is left out."""
    return [
        Flip(base["names"][key], (again[0] == 0.0, again[1] == 0.0), base["margins"].get(key, float("nan")))
        for key, again in result["again"].items()
        if list(steady[key]) == [1.0, 1.0] and None not in again
    ]


def share(count: int, of: int) -> str:
    """`8 of 9, 89 % (52 to 100)`: with its exact 95 % interval."""
    if not of:
        return "none"
    bounds = proportion_interval(count, of)
    return f"{count} of {of}, {count / of:.0%} ({bounds.lower:.0%} to {bounds.upper:.0%})"


def persistence(flips: Sequence[Flip]) -> tuple[str, str]:
    """Of a flip in one further asking, and in both."""
    return (
        share(sum(sum(flip.again) for flip in flips), 2 * len(flips)),
        share(sum(all(flip.again) for flip in flips), len(flips)),
    )


def tables(
    results: Sequence[Mapping[str, Any]], base: Mapping[str, Any], steady: Mapping[str, Sequence[float | None]]
) -> list[str]:
    """Persistence by deployment and by margin, and flips of the listed canaries' draws at and above each floor."""
    by_name = {result["name"]: flips_of(result, base, steady) for result in results}
    same = [flip for result in results if result["same_weights"] for flip in by_name[result["name"]]]
    other = [flip for result in results if not result["same_weights"] for flip in by_name[result["name"]]]
    lines = ["| deployment | asked | flips | in another asking too | in both others |", f"|{'---|' * 5}"]
    for result in results:
        flips = by_name[result["name"]]
        lines.append(f"| {result['name']} | {len(result['asked'])} | {len(flips)} | {' | '.join(persistence(flips))} |")
    for title, flips in (("the reference, computed otherwise", same), ("all branches", other)):
        lines.append(f"| **{title}** | | {len(flips)} | {' | '.join(persistence(flips))} |")
    lines += ["", "| least margin of the reference, nats | flips of branches | in both others |", f"|{'---|' * 3}"]
    for low, high in zip(MARGIN_BINS, (*MARGIN_BINS[1:], float("inf")), strict=True):
        inside = [flip for flip in other if (low <= flip.nats < high) or (low == 0.0 and flip.nats < 0.0)]
        lines.append(f"| {low:g} to {high:g} | {len(inside)} | {persistence(inside)[1]} |")
    lines += [
        "",
        "| floor, nats | listed canaries: asked of branches | flip in all three | below it |",
        f"|{'---|' * 4}",
    ]
    branches = [result for result in results if not result["same_weights"]]
    for floor in MARGIN_BINS:
        margins = [
            base["margins"][key] for result in branches for key in result["asked"] if _listed(base["names"][key])
        ]
        lost = [flip.nats for flip in other if _listed(flip.name) and all(flip.again)]
        above, below = ([nats for nats in margins if (nats >= floor) is over] for over in (True, False))
        flipped = [sum((nats >= floor) is over for nats in lost) for over in (True, False)]
        lines.append(
            f"| {floor:g} | {len(above)} | {_rare(flipped[0], len(above))} | {_rare(flipped[1], len(below))} |"
        )
    return lines


def _listed(name: str) -> bool:
    return name.partition("/")[0].removesuffix("-must-pass") in LISTED


def _rare(count: int, of: int) -> str:
    if not of:
        return "–"
    return f"{count} of {of}, {count / of:.2%} (at most {proportion_interval(count, of).upper:.2%})"


# ---- what zero tolerance costs by that

GATES = 200_000
BEFORE = 125
"""Fixed prompts over both lanes, of all of which one flip was enough."""


def failing(prompts: int, changed: float, persists: float, lost: float = 0.0, seed: int = 16) -> float:
    """How often a list of fixed prompts fails a branch, simulated.

    The branch changes a share `changed` of its answers, half of them from right to wrong: a prompt is wrong in the
    first asking by half of it, and then in each of the two others with probability `persists`, or as rarely as any.
    `lost` is the share of prompts that it gets wrong in every asking.
    """
    rng = np.random.default_rng(seed)
    flips = changed / 2
    stays = persists + (1.0 - persists) * flips
    wrong = rng.binomial(rng.binomial(prompts, flips, GATES), stays**2)
    return float(np.mean((wrong > 0) | (rng.binomial(prompts, lost, GATES) > 0)))


def simulated(listed: int, rarer: float, persists: Sequence[float]) -> list[str]:
    """Before: all prompts. After: the list alone, as it is, and with flips above the floor `rarer` times as rare."""
    rows = [
        f"| {c:.2f} | " + " | ".join(f"{100 * value:.1f}" for value in values) + " |"
        for c in persists
        for values in [
            [
                failing(BEFORE, 0.02, c),
                failing(listed, 0.02, c),
                failing(listed, 0.02 / rarer, c),
                failing(BEFORE, 0.0, c, lost=0.001),
                failing(listed, 0.0, c, lost=0.001),
                failing(listed, 0.0, c, lost=0.001 / rarer),
            ]
        ]
    ]
    kinds = [f"{BEFORE} prompts", f"list of {listed}", f"list, flips {rarer:g} times rarer above the floor"]
    heads = [f"{what}: {kind}" for what in ("2 % changed", "1 in 1,000 lost") for kind in kinds]
    return [f"| c | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}", *rows]


@dataclass(frozen=True)
class _Allowed:
    value: float
    kind: MarginKind = "max_increase"


def may_lose(prompts: int, failed: int, margin: float, confidence: float = 0.975) -> int | None:
    """How many prompts a branch may lose and still pass, where the reference fails `failed`; None: not even none."""
    most = None
    for lost in range(prompts - failed):
        sides = [(1.0, 1.0)] * failed + [(1.0, 0.0)] * lost + [(0.0, 0.0)] * (prompts - failed - lost)
        clusters = Clusters(
            units=(1,) * prompts,
            branch=tuple(branch for branch, _ in sides),
            reference=tuple(reference for _, reference in sides),
            errored=(0,) * prompts,
            bounds=(0.0, 1.0),
        )
        test = margin_test(
            clusters,
            "paired_proportions",
            _Allowed(margin),
            direction=Direction.LOWER_IS_BETTER,
            level=2 * confidence - 1,
        )
        if test.p_pass > 1.0 - confidence:
            break
        most = lost
    return most


def rates(cases: Sequence[tuple[str, int, int, float]]) -> list[str]:
    """For each (criterion, prompts, failed by the reference, margin): what may be lost, and how often it passes."""
    from scipy.stats import binom

    losses = (0.0, 0.005, 0.01, 0.02, 0.03)
    heads = [f"PASS at {loss:.1%} lost" for loss in losses]
    lines = [
        f"| rate | prompts | margin | may lose | {' | '.join(heads)} | at the margin |",
        f"|{'---|' * (5 + len(heads))}",
    ]
    for name, prompts, failed, margin in cases:
        most = may_lose(prompts, failed, margin)
        if most is None:
            lines.append(f"| {name} | {prompts} | {margin:g} | cannot pass |{' |' * (1 + len(heads))}")
            continue
        cells = [f"{100 * float(binom.cdf(most, prompts - failed, loss)):.1f}" for loss in (*losses, margin)]
        lines.append(f"| {name} | {prompts} | {margin:g} | {most} | {' | '.join(cells)} |")
    return lines


RATES = (
    ("release, structured", 60, 0, 0.15),
    ("release, freeform", 30, 0, 0.25),
    ("sandbox, structured", 34, 1, 0.25),
    ("sandbox, freeform", 18, 0, 0.3),
)
"""As in data/policies, with the prompts that a reference of the list's every prompt leaves to the rate."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask what is not in DIR yet and print the tables; or simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where answers are kept, and looked for")
    parser.add_argument("--draws", type=int, default=60, help="of every family")
    parser.add_argument(
        "--below", type=float, default=4.0, metavar="NATS", help="other questions only with a lower margin"
    )
    parser.add_argument("--only", nargs="*", help="deployments, by name")
    parser.add_argument("--simulate", action="store_true", help="no model: how often lists of prompts fail a branch")
    parser.add_argument("--listed", type=int, default=25, help="prompts of the absolute list, in the simulation")
    parser.add_argument("--rarer", type=float, default=1.0, help="how much rarer its prompts flip, in the simulation")
    parser.add_argument(
        "--persists", type=float, nargs="*", default=[], help="further c to simulate: what was measured"
    )
    given = parser.parse_args(arguments)
    if given.simulate:
        print("\n".join(simulated(given.listed, given.rarer, sorted({0.0, 0.25, 0.5, 1.0, *given.persists}))))
        print("\n".join(["", *rates(RATES)]))
        return
    if given.out is None:
        parser.error("name a folder with --out, or --simulate")
    given.out.mkdir(parents=True, exist_ok=True)
    base = reference(given.out, given.draws)
    results = []
    for deployment in deployments():
        if given.only is None or deployment.name in given.only:
            results.append(asked_of(deployment, given.out, given.draws, given.below))
            print(f"{deployment.name}: {len(results[-1]['wrong'])} wrong, {results[-1]['seconds']} s", flush=True)
    wrong = sorted({key for result in results for key in result["wrong"]})
    print("\n".join(tables(results, base, reference_again(given.out, given.draws, wrong))))


if __name__ == "__main__":
    main()
