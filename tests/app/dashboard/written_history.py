"""A small history, written through its public interface and judged by the shipped policy's own rules."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from q36eval.canaries.outcomes import question_name
from q36eval.gate import Circumstances, Policy, Stage, StageState, decide, with_integrity
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.records import (
    Answer,
    Clusters,
    DeploymentIdentity,
    Estimator,
    ItemOutcome,
    Measurement,
    ProbeFailure,
    ProbeName,
)
from q36eval.run.rounds import not_evaluated_after
from q36eval.token_files import WorstToken
from tests import outcomes
from tests.q36eval.gate.evidence import HIGHER, LOWER, census, measurement
from tests.q36eval.stats.evidence import items as clusters_of

POLICY = Path(__file__).parents[3] / "data" / "policies" / "sandbox.yaml"
HOSTILE = (
    "<script>alert('owned')</script> [a link](javascript:alert(1)) \x1b[31mred\x07 \u202egnitrevni ![x](http://x/y)"
)


LEFT_OUT = (ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS)
HIGHER_IS_BETTER = ("accuracy", "decisive_margin_ratio")


def identity(weights: str, **changes: str) -> DeploymentIdentity:
    fields = {"tokenizer_sha256": "b" * 64, "chat_template_sha256": "c" * 64, "engine": "in-process"}
    return DeploymentIdentity(checkpoint_sha256=weights * 64, **fields | {"engine_version": "5.17.0"} | changes)


def measured(
    probe: ProbeName, metric: str, slice: str, clusters: Clusters, estimator: Estimator, unit: str
) -> Measurement:
    direction = HIGHER if metric in HIGHER_IS_BETTER else LOWER
    return measurement(probe, metric, clusters, estimator, direction, slice, unit)


def _paired(
    probe: ProbeName, metric: str, slice: str, branch: np.ndarray, reference: np.ndarray, unit: str
) -> Measurement:
    bounded = metric != "perplexity"
    units = [1 if bounded else 200] * len(branch)
    clusters = clusters_of(branch, reference, units, bounds=(0.0, 1.0) if bounded else None)
    return measured(probe, metric, slice, clusters, "paired_mean" if bounded else "perplexity", unit)


def evidence(policy: Policy, damage: float, seed: int) -> list[Measurement]:
    """A measurement for every criterion; `damage` is how many margins the branch is worse than its reference."""
    rng = np.random.default_rng(seed)
    found = []
    for criterion in with_integrity(policy).criteria:
        probe, metric, slice = criterion.probe, criterion.metric, criterion.slice
        if criterion.margin.kind == "max_count":
            found.append(census(probe, metric, 0 if damage < 2 or probe is not ProbeName.CANARIES else 3, slice))
        elif criterion.margin.kind == "max_value":
            n = 120
            sums = 200 * damage * criterion.margin.value * rng.lognormal(-0.5, 1.0, n)
            clusters = Clusters(units=(200,) * n, branch=tuple(map(float, sums)), errored=(0,) * n)
            found.append(measured(probe, metric, slice, clusters, "mean", "nats/token"))
        elif metric == "decisive_margin_ratio":
            theirs = np.random.default_rng(seed).lognormal(1.8, 0.4, 250)  # of its own: other draws stay as they are
            ours = theirs * (1 - 0.1 * damage)
            clusters = Clusters(units=(1,) * 250, branch=tuple(ours), reference=tuple(theirs), errored=(0,) * 250)
            found.append(measured(probe, metric, slice, clusters, "ratio", "ratio"))
        elif criterion.margin.kind == "min_retention":
            nll = 200 * (1.5 + 0.5 * rng.random(120))
            noise = 200 * (damage * 0.02 + rng.normal(0, 0.01, 120))
            found.append(_paired(probe, metric, slice, nll + noise, nll, "perplexity per token"))
        else:
            better_is_one = metric == "accuracy"
            # of its own: other draws stay as they are
            drawn = np.random.default_rng(seed) if metric == "fixed_prompt_failure_rate" else rng
            right = drawn.random(500) < (0.8 if better_is_one else 0.97)
            keeps = right & (drawn.random(500) >= damage * 0.06)
            values = (keeps, right) if better_is_one else (~keeps, ~right)
            found.append(_paired(probe, metric, slice, *values, "share of items"))
    return found


def outcome(
    number: int,
    group: str,
    reference: str,
    branch: str | None,
    *,
    scores: tuple[float, float],
    confirmed: bool = False,
) -> ItemOutcome:
    """One question asked of both; `confirmed`: a required prompt that was asked again, with the same result."""
    again = [{"repeats": [{"score": score}]} if confirmed else {} for score in scores]
    failures = [{"check": "number", "code": "wrong_number", "place": "end", "message": f"expected 90, saw {branch}"}]
    answer = Answer(score=None, error="the engine gave up")
    if branch is not None:
        answer = Answer(score=scores[1], text=branch, detail={"failures": [] if scores[1] else failures} | again[1])
    theirs = Answer(score=scores[0], text=reference, detail={"failures": [] if scores[0] else failures} | again[0])
    asked = {
        "prompt": f"<|im_start|>user\nJe výhodnější sleva {number} % nebo 90 Kč?<|im_end|>\n",
        "expected": "Výhodnější je sleva v procentech.",
        "must_pass": number % 5 == 0 or confirmed,
    }
    name = f"{group}/{number}"
    return outcomes.outcome(ProbeName.CANARIES, name, answer, theirs, item_key=f"{number:064x}", **asked)


def flips_named(found: Measurement, items: list[ItemOutcome]) -> Measurement:
    """A count of flips with the names of the prompts that it counts, where `items` hold as many."""
    flipped = [question_name(item) for item in items if item.must_pass and item.flip == "regression"]
    if found.metric != "must_pass_flips" or found.value != len(flipped):
        return found
    names = (*flipped, *(f"tool-calls/{place}" for place in range(100 - len(flipped))))
    flips = tuple(float(place < len(flipped)) for place in range(100))
    clusters = Clusters(units=(1,) * 100, branch=flips, errored=(0,) * 100, names=names)
    return measured(found.probe, found.metric, found.slice, clusters, "census", found.unit)


def canary_items(n: int, damage: float) -> list[ItemOutcome]:
    """Czech and JSON answers; the first regression of a damaged branch carries hostile text."""
    items = []
    for i in range(n):
        group = ("czech-discount", "json-nested", "tool-calls")[i % 3]
        right = f"Po slevě {i} % zaplatíme 90 Kč.\nVýhodnější je sleva v procentech."
        wrong = f"Po slevě {i} % zaplatíme 80 Kč.\nVýhodnější je pevná sleva."
        worse = damage > 0 and i % max(2, int(28 / damage)) == 1
        text = HOSTILE if worse and i == 1 else (wrong if worse else right)
        scores = (1.0, 0.0 if worse else 1.0)
        items.append(outcome(i, group, right, text, scores=scores, confirmed=worse and 1 < i < 28))
    items.append(outcome(n, "tool-calls", "<tool_call>{}</tool_call>", None, scores=(1.0, 1.0)))
    items.append(outcome(n + 1, "json-nested", "{", '{"a": 1}', scores=(0.0, 1.0)))
    return items


def write_run(
    history: History,
    branch: str,
    damage: float,
    seed: int,
    *,
    n_items: int = 30,
    without: ProbeName | None = None,
    engine_version: str = "5.17.0",
    stopped: bool = False,
    **about: Any,
) -> RunRecord:
    """One gate run, measured, judged and finished; `without` names a probe that crashed, `stopped` is one that stopped
    after the required prompts. `about` is what it was started with instead."""
    policy = read_policy(POLICY)
    usual = {
        "identity": identity("d" if damage else "a", engine_version=engine_version),
        "reference_identity": identity("a"),
        "policy": policy,
        "suites": {name.value: f"suite-{name}" for name in ProbeName},
        "provenance": {"git_commit": "abc123", "git_dirty": True, "packages": {"torch": "2.13.0"}},
    }
    run = history.start_run(family="sandbox", branch=branch, **(usual | about))
    items = canary_items(n_items, damage)
    found = [flips_named(m, items) for m in evidence(policy, damage, seed) if m.probe is not without]
    failures, stages = [], []
    if without is not None:
        failures.append(ProbeFailure(probe=without, reason=f"out of memory {HOSTILE}", kind="crashed"))
    if stopped:
        found = [m for m in found if m.metric == "must_pass_flips" or m.probe is ProbeName.WEIGHTS]
        why = not_evaluated_after("fixed-prompts", ["required-structured", "required-freeform"])
        failures += [ProbeFailure(probe=probe, reason=why, kind="skipped") for probe in LEFT_OUT]
        stages.append(Stage(name="kl", state=StageState.NOT_EVALUATED, items=0, planned=780))
    history.add_measurements(run.id, found)
    if without is not ProbeName.CANARIES:
        history.add_items(run.id, items)
    for failure in failures:
        history.add_failure(run.id, failure)
    circumstances = Circumstances(on=run.started.date())
    history.update_run(run.id, circumstances=circumstances)
    return history.finish_run(run.id, decide(policy, found, (), failures, on=circumstances.on, stages=tuple(stages)))


def record(
    path: Path, items: Sequence[ItemOutcome], found: Sequence[Measurement] = (), branch: str = "fp8-head"
) -> RunRecord:
    """A run of these outcomes and measurements, which was not judged."""
    history = History.open(path)
    begun = history.start_run(family="sandbox", branch=branch, identity=None, reference_identity=None)
    history.add_items(begun.id, items)
    history.add_measurements(begun.id, found)
    finished = history.finish_run(begun.id)
    history.close()
    return finished


def worst_token(index: int, **fields: Any) -> WorstToken:
    figures = {"reference_entropy": 0.5, "reference_logprob": -0.1, "branch_logprob": -9.0, "top1_rank": 3}
    words = {"before": "the ", "text": f"word {index}", "after": " after", "document": "d", "slice": "czech"}
    return WorstToken(index=index, **(figures | words | {"kind": "word"} | fields))


def write_history(path: Path) -> dict[str, RunRecord]:
    """Runs by a short name: a blessed PASS, a later PASS, a FAIL, a crashed probe, and an interrupted run."""
    history = History.open(path)
    runs = {"first": write_run(history, "fp8-head", 0.05, 1, engine_version="5.16.0")}
    runs["blessed"] = write_run(history, "fp8-head", 0.05, 2)
    history.bless(runs["blessed"].id, "Jana", "release 1.0")
    runs["pass"] = write_run(history, "fp8-head", 0.1, 3)
    runs["ruined"] = write_run(history, "int2-experts", 4.0, 4)
    runs["crashed"] = write_run(history, "main", 0.05, 5, without=ProbeName.EVALS)
    about = {"family": "sandbox", "branch": "w4a16", "policy": read_policy(POLICY)}
    resumable = history.start_run(**about, identity=None, reference_identity=None)
    history.finish_run(resumable.id, state=resumable.state.__class__.INTERRUPTED)
    runs["interrupted"] = history.get_run(resumable.id)
    history.close()
    return runs
