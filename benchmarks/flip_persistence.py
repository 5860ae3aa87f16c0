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

from q36eval.stats import proportion_interval

if TYPE_CHECKING:
    from canaries.probe import CanaryProbe
    from q36eval.engines.base import Generated, GenerationRequest
    from q36eval.engines.in_process import InProcessEngine

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "bf16"
BRANCHES = ("main", "nvfp4-modelopt", "gptq-int4")
RUNGS = (3, 4)
"""Bits that the reference's experts are rounded to: further branches, made here."""

FOUR = 4
MARGIN_BINS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
"""Lower ends, in nats, of the bins of the reference's least decisive margin; the first takes all below the next."""


# ---- what is asked of a deployment


@dataclass(frozen=True)
class Deployment:
    """One way to answer: a name, how its engine is made, and whether its weights are the reference's."""

    name: str
    load: "Callable[[], InProcessEngine]"
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


def _loaded(name: str) -> "InProcessEngine":
    from app.targets import load_family, resolve
    from q36eval.config import Paths
    from q36eval.engines.in_process import InProcessEngine

    paths = Paths.default()
    return InProcessEngine.load(resolve(name, load_family(None, paths), paths).folder)


def _rung(bits: int) -> "InProcessEngine":
    from app.sandbox.ladder import damage_experts

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
        from canaries.probe import MUST_PASS, CanaryProbe
        from canaries.specification import load_specs

        probe = CanaryProbe(load_specs(n=draws, skills=()))
        items = probe.plan(tokenizer)
        requests = {item.key: replace(item.generations[0], group=item.stage) for item in items}
        fixed = frozenset(item.key for item in items if item.stage == MUST_PASS)
        return cls(requests, fixed, {item.key: probe._by_key[item.key][0].name for item in items}, probe)

    def scores(
        self, engine: "InProcessEngine", requests: "Sequence[GenerationRequest]", keep: "list[Generated] | None" = None
    ) -> dict[str, float | None]:
        """Score by request key; fillers, whose keys name no question, are left out. `keep` takes what was generated."""
        from canaries.answers import judged_answer

        found: dict[str, float | None] = {}
        for generated in engine.generate(requests):
            key = generated.request.key
            if key.count("/") < 2 and generated.error is None:
                case, _ = self.probe._by_key[key.partition("/")[0]]
                found[key] = judged_answer(case, generated.text, generated.finish_reason, 0).score
                if keep is not None:
                    keep.append(generated)
        return found

    def again(self, keys: Sequence[str]) -> "list[GenerationRequest]":
        """Each of them among four, with the questions planned after it, and alone."""
        every = list(self.requests)
        place = {key: at for at, key in enumerate(every)}
        asked = []
        for key in keys:
            for ending, rows in (("four", FOUR), ("alone", 1)):
                group = f"{ending}/{key}"
                asked.append(replace(self.requests[key], key=f"{key}/{ending}", group=group, shared=0))
                others = [self.requests[every[(place[key] + step) % len(every)]] for step in range(1, rows)]
                asked += [
                    replace(other, key=f"{key}/{ending}/{number}", group=group, shared=0)
                    for number, other in enumerate(others)
                ]
        return asked

    def margins(self, engine: "InProcessEngine", answers: "Sequence[Generated]") -> dict[str, float]:
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
        found = {}
        for scored in engine.score(forced):
            key = scored.request.key.removesuffix("/taught")
            results = ItemResults(scored={scored.request.key: scored})
            taught = self.probe.digest_follow_up(engine, WorkItem(key=key), digests[key], results).values
            if taught.get("decisive"):
                found[key] = min(taught["teacher"]["margins"])
        return found


def asked_of(deployment: Deployment, out: Path, draws: int) -> dict[str, Any]:
    """Scores in the first asking of all, and in both others of what is wrong there and right under the reference."""
    file = out / f"{deployment.name.replace(' ', '-').replace(',', '').replace('’', '')}.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return kept
    base = reference(out, draws)
    began = time.monotonic()
    engine = deployment.load()
    questions = Questions.of(engine.tokenizer, draws)
    first = questions.scores(engine, list(questions.requests.values()))
    wrong = [key for key, score in first.items() if score == 0.0 and base["first"].get(key) == 1.0]
    further = questions.scores(engine, questions.again(wrong))
    found = {
        "name": deployment.name,
        "same_weights": deployment.same_weights,
        "wrong": wrong,
        "again": {key: [further.get(f"{key}/four"), further.get(f"{key}/alone")] for key in wrong},
        "seconds": round(time.monotonic() - began, 1),
    }
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def reference(out: Path, draws: int) -> dict[str, Any]:
    """Its scores in the first asking, its margins, and which questions are fixed prompts."""
    file = out / "reference.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return kept
    began = time.monotonic()
    engine = _loaded(REFERENCE)
    questions = Questions.of(engine.tokenizer, draws)
    answers: "list[Generated]" = []
    found = {
        "first": questions.scores(engine, list(questions.requests.values()), answers),
        "margins": questions.margins(engine, answers),
        "fixed": sorted(questions.fixed),
        "names": questions.names,
        "seconds": round(time.monotonic() - began, 1),
    }
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where answers are kept, and looked for")
    parser.add_argument("--draws", type=int, default=60, help="of every family")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    base = reference(given.out, given.draws)
    print("reference", base["seconds"], flush=True)
    results = []
    for deployment in deployments():
        results.append(asked_of(deployment, given.out, given.draws))
        r = results[-1]
        print(r["name"], len(r["wrong"]), r["seconds"], flush=True)
    again = reference_again(given.out, given.draws, sorted({k for r in results for k in r["wrong"]}))
    print(len(again))


if __name__ == "__main__":
    main()
