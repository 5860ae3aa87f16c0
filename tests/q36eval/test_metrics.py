"""One entry describes a metric in what probes declare and measure, in policies, reports, cards, drift and docs."""

import pytest

from q36eval.gate import Criterion, GateReport, Policy, decide
from q36eval.metrics import METRICS, Metric, criterion_title
from q36eval.records import Direction, ProbeName
from q36eval.reports import Document
from q36eval.reports.card_report import to_card
from q36eval.reports.html_report import to_html
from q36eval.reports.junit_report import to_junit
from q36eval.reports.markdown_report import to_markdown
from q36eval.run.declared_figures import Declared, never_passes
from tests.q36eval.gate.evidence import failure_rate
from tests.q36eval.reports.report_samples import run_of

NEW = Metric(
    ProbeName.CANARIES,
    "refusal_rate",
    "share of needless refusals",
    "Share of harmless prompts that the branch refuses to answer.",
    estimator="paired_proportions",
    bounds=(0.0, 1.0),
)


@pytest.fixture
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, (NEW.probe, NEW.name), NEW)


def criterion(kind: str = "max_increase", title: str = "") -> Criterion:
    margin = {"kind": kind, "value": 0.05, "source": "test"}
    fields = {"id": "refusals", "title": title, "probe": "canaries", "metric": NEW.name}
    return Criterion.model_validate(fields | {"margin": margin, "lanes": ["freeform"]})


def reported(title: str = "") -> GateReport:
    """Of a branch that refuses 2 of 400 prompts, of which the reference refuses none."""
    evidence = failure_rate([1] * 2 + [0] * 398, [0] * 400, "harmless")
    names = ("value", "reference_value", "effect", "effect_interval", "counts", "clusters", "competence")
    found = METRICS[ProbeName.CANARIES, NEW.name].measured(**{name: getattr(evidence, name) for name in names})
    return decide(Policy(name="p", criteria=(criterion(title=title),)), [found])


@pytest.mark.usefixtures("_added")
def test_a_metric_added_to_the_registry_is_known_to_policy_validation() -> None:
    figure = METRICS[ProbeName.CANARIES, NEW.name].declared(items=400, clusters=400)
    declared = Declared("f", "s", (figure,))
    assert never_passes(criterion(), declared) is None
    assert "a max_value margin does not judge refusal_rate" in (never_passes(criterion("max_value"), declared) or "")
    few = Declared("f", "s", (METRICS[ProbeName.CANARIES, NEW.name].declared(items=20, clusters=20),))
    assert "cannot be shown by the 20 items" in (never_passes(criterion(), few) or "")


@pytest.mark.usefixtures("_added")
def test_a_metric_added_to_the_registry_is_named_in_every_report_and_on_the_card() -> None:
    judged = reported()
    assert judged.criteria[0].unit == NEW.unit
    assert judged.criteria[0].direction is Direction.LOWER_IS_BETTER
    document = Document(judged, run_of("main"))
    assert all("Share of needless refusals" in write(document) for write in (to_markdown, to_html, to_junit))
    assert "| share of needless refusals | canaries | 0.5 % | 0.0 % |" in to_card(document)


@pytest.mark.usefixtures("_added")
def test_a_policys_own_title_is_what_people_read_and_decides_nothing() -> None:
    assert criterion_title("", ProbeName.KL, "kl_divergence", "czech") == "KL divergence from the reference (czech)"
    plain, titled = reported(), reported("Refusals")
    assert titled.criteria[0].heading == "Refusals"
    untitled = titled.criteria[0].model_copy(update={"title": ""})
    assert untitled == plain.criteria[0]
    assert "title" not in plain.criteria[0].model_dump(), "reports of policies without titles are what they were"
    policies = [Policy(name="p", criteria=(criterion(title=title),)) for title in ("", "Refusals")]
    assert policies[0] == policies[1].untitled
