"""What the probe says it will yield is what it yields, and what it says of the reference: whole runs, scripted."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.canaries.cases import Case, cases_of
from q36eval.canaries.probe import CanaryProbe, rendered
from q36eval.canaries.specification import CanarySpec, load_specs
from q36eval.config.family import Family
from q36eval.engines import Engine, Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.files import read_yaml
from q36eval.probes import Probe, Progress, Sink
from q36eval.records import DeploymentIdentity, FailureCauses, FamilyCompetence, ItemOutcome, Measurement, ProbeFailure
from q36eval.references import Capture
from q36eval.run.capture import captured
from q36eval.run.rounds import run_probes

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
BF16 = ROOT / "data" / "sandbox" / "bf16"
IDENTITY = DeploymentIdentity(
    checkpoint_sha256="a", tokenizer_sha256="t", chat_template_sha256="c", engine="test", engine_version="1"
)
Said = Callable[[Case], tuple[str, str]]
"""What is answered to a question, and why the answer ended."""


class Scripted(Engine):
    """Says what it is told to, and is sure of whatever token comes next by 20 nats."""

    identity = IDENTITY

    def __init__(self, tokenizer: Any, specs: Sequence[CanarySpec], said: Said) -> None:
        self.tokenizer = tokenizer
        cases = [case for spec in specs for case in cases_of(spec)]
        prompts = {case.name: tokenizer.encode(rendered(case, tokenizer), add_special_tokens=False) for case in cases}
        self._said = {tuple(prompts[case.name]): said(case) for case in cases}
        self._end = tokenizer.eos_token_id

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        for request in requests:
            if request.key not in known:
                text, reason = self._said[request.token_ids]
                ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
                error = "engine: out of memory" if reason == "error" else None
                end = self._end if reason == "stop" else None
                yield Generated(request, ids, text, reason, error=error, end_id=end, rows=1)

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        for request in requests:
            if request.key not in known:
                yield Scored(request, torch.tensor(request.token_ids[request.first :], dtype=torch.float32)[:, None])

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return 20.0 * torch.nn.functional.one_hot(hidden_states[:, 0].long(), len(self.tokenizer)).float()

    def head_weight(self) -> torch.Tensor:
        raise AssertionError("only a divergence needs the head")


class Kept(Sink, Progress):
    """What a run writes; `items` may be handed on to a run that resumes it."""

    def __init__(self, items: Sequence[ItemOutcome] = ()) -> None:
        self.items = {outcome.item_key: outcome for outcome in items}
        self.measured: dict[str, Measurement] = {}

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self.items |= {outcome.item_key: outcome for outcome in outcomes}

    def add_measurement(self, measurement: Measurement) -> None:
        self.measured[measurement.key] = measurement

    def add_failure(self, failure: ProbeFailure) -> None:
        raise AssertionError(failure.reason)

    def known_items(self) -> list[ItemOutcome]:
        return list(self.items.values())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(BF16)


def right(case: Case) -> tuple[str, str]:
    thought = "Počítám.\n</think>\n\n" if case.generation.enable_thinking else ""
    return thought + case.answer, "stop"


def gated(
    specs: Sequence[CanarySpec], tokenizer: Any, place: Path, reference: Said = right, branch: Said = right, **kept: Any
) -> Kept:
    def open_capture(probe: Probe) -> Capture:
        return Capture(place, IDENTITY, probe.name, probe.suite_sha256)

    sink = Kept(**kept)
    captures = lambda works: captured(works, open_capture, lambda: Scripted(tokenizer, specs, reference), sink)  # noqa: E731
    run_probes(Scripted(tokenizer, specs, branch), tokenizer, captures, [CanaryProbe(specs)], sink, sink)
    return sink


@pytest.mark.parametrize("family", ["sandbox", "qwen3.6-35b-a3b"])
def test_exactly_what_is_declared_is_measured(family: str, tokenizer: Any, tmp_path: Path) -> None:
    skills = read_yaml(ROOT / "data" / "families" / f"{family}.yaml", Family, "family").skills
    specs = load_specs(n=1, skills=skills)
    declared = {figure.key: figure for figure in CanaryProbe(specs).declared()}
    measurements = gated(specs, tokenizer, tmp_path).measured
    del measurements["canaries.engine_drift[all]"]  # the run's, of every probe's engine
    assert set(measurements) == set(declared)
    assert "canaries.must_pass_flips[discount-compare-must-pass]" in measurements
    for key, measured in measurements.items():
        figure = declared[key]
        said = (figure.estimator, figure.direction, figure.unit)
        assert said == (measured.estimator, measured.direction, measured.unit), key
        if measured.metric != "schema_accuracy":  # of calls that are made, which only answers tell
            clusters = measured.clusters
            assert clusters is not None
            assert (figure.items, figure.clusters) == (measured.counts.total, len(clusters.units)), key
            assert measured.counts.scored == measured.counts.total, key
        assert (measured.competence is None) == (measured.estimator in ("census", "mean")), key


def test_each_rate_says_what_the_reference_solves_and_why_answers_are_not_right(tokenizer: Any, tmp_path: Path) -> None:
    specs = load_specs(only=["json-flat", "tool-call", "enum-select-must-pass", "stability"], n=6, skills=None)
    faults = {
        "json-flat/1": ("{", "length"),
        "json-flat/2": ("nevím", "stop"),
        "json-flat/3": ("", "error"),
        "stability/1": ("dokola a dokola " * 200, "length"),
    }

    def reference(case: Case) -> tuple[str, str]:
        return faults.get(case.name) or right(case)

    def branch(case: Case) -> tuple[str, str]:
        return ("nevím", "stop") if case.name == "json-flat/6" else reference(case)

    sink = gated(specs, tokenizer, tmp_path, reference, branch)
    rate = sink.measured["canaries.failure_rate[all]"]
    causes = {"cut_off": 1, "errored": 1, "wrong": 1}
    assert rate.competence == (
        FamilyCompetence(name="json-flat", items=6, informative=3, causes=causes),
        FamilyCompetence(name="stability", items=6, informative=5, causes={"loop": 1}),
        FamilyCompetence(name="tool-call", items=6, informative=6),
    )
    assert rate.causes == FailureCauses(
        branch={"cut_off": 1, "errored": 1, "loop": 1, "wrong": 2}, reference=causes | {"loop": 1}
    )
    assert rate.clusters is not None
    assert rate.clusters.families is not None
    assert {name.partition("/")[0] for name in rate.clusters.names or ()} == set(rate.clusters.families)
    for metric in ("at_risk", "decisive_margin"):
        assert sink.measured[f"canaries.{metric}[json-flat]"].competence == rate.competence[:1]

    half = [outcome for number, outcome in enumerate(sink.items.values()) if number % 2]
    resumed = gated(specs, tokenizer, tmp_path, reference, branch, items=half)
    theirs = {key: m.model_copy(update={"clusters": None}) for key, m in resumed.measured.items()}
    assert theirs == {key: m.model_copy(update={"clusters": None}) for key, m in sink.measured.items()}
