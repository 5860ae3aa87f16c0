"""Every shipped policy: PASS in every lane of what answers as the reference, and each criterion FAILs by its own fault.

Real probes ask a stub deployment through the real runner, and the real gate decides: no figure is made up. Suites and
corpora are of the shipped ones' shape, with fewer items (`benchmarks/satisfiable.py` asks as many as a release).
"""

import hashlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from q36eval.app.policies.files import shipped_policies
from q36eval.config import Paths
from q36eval.gate import CriterionVerdict, decide, with_integrity
from q36eval.gate.integrity import ENGINE_DRIFT
from q36eval.gate.policy_file import read_policy
from q36eval.records import Measurement, Verdict
from tests.app.satisfiable.evidence import FEW, Evidence
from tests.declared import assert_declared
from tests.profiles import LONG

REPOSITORY = Path(__file__).parents[3]
PATHS = Paths(REPOSITORY, REPOSITORY / "no-state")
OF_ENDPOINTS = {"served", "watch"}
SHIPPED = {
    name: file
    for name, file in shipped_policies(PATHS).items()
    if (name == "pre-check") == LONG and name not in OF_ENDPOINTS
}
SUITES = ["quick"] if LONG else ["extended", "sandbox"]
"""A pre-check asks less of what a release asks: its evidence is made by `make test-long`, and nothing else is there.

What `served` and `watch` ask of an endpoint no stub in this process can show: `tests/q36eval/served` and
`tests/q36eval/watch` hold them to endpoints with and without faults.
"""

pytestmark = pytest.mark.sized

TOGETHER = {
    "czech-discount": {"required-freeform", "required-structured"},  # it is required in both lanes
    "required-freeform": {"required-structured"},  # the absolute prompts of free text are asked of both lanes
    "fixed-prompts-structured": {"fixed-prompts-freeform"},  # some prompts are asked of both lanes
    "fixed-prompts-freeform": {"fixed-prompts-structured"},
    "kl": {"perplexity"},  # of the same texts, in `standard`
    "perplexity": {"kl"},
    # what diverges so far is as far from its perplexity; `standard` has few texts, whose mean moves with them
    "kl-worst-documents": {"perplexity", "kl"},
    "ruler-128k": {"ruler"},  # one of its lengths
    "wrong-conclusions": {"failures-freeform"},  # a wrong conclusion is a wrong answer
}
"""Faults that concern more by necessity."""


PURE = ("q36eval.stats.summarize", "q36eval.evals.figures.recovery", "q36eval.gate.evidence.judge")
"""A fault concerns few of the figures. The others are made of the same clusters, by pure functions, and are kept."""


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which computes each distinct question once."""
    known: dict[tuple[str, ...], Any] = {}
    written: dict[int, tuple[Measurement, str]] = {}
    """By id, the hash of a measurement, and the measurement, so that no other takes its id."""

    def said(argument: Any) -> str:
        if id(argument) in written:
            return written[id(argument)][1]
        if isinstance(argument, BaseModel):
            text = hashlib.sha256(repr(argument.model_dump()).encode()).hexdigest()
            if isinstance(argument, Measurement):
                written[id(argument)] = argument, text
            return text
        return repr([said(each) for each in argument] if isinstance(argument, list | tuple) else argument)

    def found(*arguments: Any) -> Any:
        key = tuple(map(said, arguments))
        if key not in known:
            known[key] = function(*arguments)
        return known[key]

    return found


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    with pytest.MonkeyPatch.context() as patch:
        for name in PURE:
            patch.setattr(name, once(pkgutil.resolve_name(name)))
        yield Evidence(tmp_path_factory.mktemp("satisfiable"), PATHS, FEW)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_what_answers_as_the_reference_passes_every_lane(name: str, evidence: Evidence) -> None:
    policy = evidence.policy(name)
    report = decide(policy, evidence.clean(name))
    best = Verdict.PASS if policy.purpose == "release" else Verdict.INCONCLUSIVE
    assert not report.decisive, [(c.id, c.reason) for c in report.criteria if c.id in report.decisive]
    assert report.verdict is best
    assert report.nothing_found == (policy.purpose == "pre-check")
    assert [lane.verdict for lane in report.lanes] == [best] * len(policy.lanes)


def blocking() -> list[tuple[str, str]]:
    policies = {name: with_integrity(read_policy(file)) for name, file in SHIPPED.items()}
    return [(name, c.id) for name, policy in policies.items() for c in policy.criteria if c.tier == "blocking"]


@pytest.mark.long
@pytest.mark.parametrize(("name", "criterion"), blocking())
def test_one_fault_fails_the_criterion_that_is_for_it_and_no_other(
    name: str, criterion: str, evidence: Evidence
) -> None:
    report = decide(evidence.policy(name), evidence.faulty(name, criterion))
    found = {c.id: c for c in report.criteria if c.tier == "blocking"}
    assert found[criterion].verdict is CriterionVerdict.FAIL, found[criterion].reason
    failed = {c.id for c in found.values() if c.verdict is CriterionVerdict.FAIL}
    assert failed - TOGETHER.get(criterion, set()) == {criterion}
    assert {lane.verdict for lane in report.lanes if lane.lane in found[criterion].lanes} == {Verdict.FAIL}
    assert report.exit_code == 1


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
def test_what_is_declared_is_what_is_yielded(suite: str, evidence: Evidence) -> None:
    for asked in evidence.asked(suite):
        declared = {figure.key: figure for figure in asked.probe.declared()}
        # that the engine repeats itself is the runner's own figure of every probe
        assert_declared(declared, {m.key: m for m in asked.measurements if m.metric != ENGINE_DRIFT})
