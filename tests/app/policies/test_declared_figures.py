"""What a policy asks is held against what the probes declare for a family and a suite, from their files alone."""

import re
from pathlib import Path

import pytest
from scipy.stats import binom

from q36eval.app.policies.files import policy_for, shipped_policies
from q36eval.app.policies.policy_check import check_policy
from q36eval.config import Family, Paths
from q36eval.gate import Criterion, Policy
from q36eval.gate.margins import margins_for
from q36eval.gate.policy_file import read_policy
from q36eval.metrics import metric_of
from q36eval.records import Lane, ProbeName
from q36eval.run.declared_figures import Declared, Subject, declared_for, never_passes
from q36eval.run.preflight import prepare, without_reference_weights
from q36eval.run.request import Request, Target
from q36eval.stats import margin_test
from tests.q36eval.gate import evidence
from tests.q36eval.stats.evidence import items

REPOSITORY = Path(__file__).parents[3]
PATHS = Paths(REPOSITORY, REPOSITORY / "no-state")
FAMILY = Family.load(PATHS.families / "qwen3.6-35b-a3b.yaml")


@pytest.fixture(scope="module")
def release() -> Declared:
    return declared_for(Subject(FAMILY, "release"), PATHS)


def criterion(probe: str, metric: str, slice: str = "all", kind: str = "max_increase", value: float = 0.1) -> Criterion:
    return evidence.criterion(kind, value, id="x", probe=probe, metric=metric, slice=slice)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (criterion("kl", "kl_divergenc"), "gives no metric 'kl_divergenc'; it gives "),
        (criterion("evals", "recovery", "mmlu", "min_recovery", 0.9), "computed from another measurement"),
        (criterion("kl", "kl_divergence"), "a max_increase margin does not judge kl_divergence; max_value does"),
        (criterion("kl", "top1_agreement", kind="max_value"), "higher is better"),
        (criterion("evals", "items_gained", "mmlu", "max_count", 3), "is not a fault"),
        (criterion("kl", "kl_max", kind="max_value"), "can FAIL but never PASS"),
        (criterion("evals", "accuracy", "mmlu", "min_recovery", 0.9), None),
        (
            criterion("weights", "integrity_faults", "layer0", "max_count"),
            "no integrity_faults of 'layer0', but of all",
        ),
        (criterion("kl", "kl_max", "kind=json", "max_value"), "no kl_max of 'kind=json', but of json"),
        (criterion("kl", "kl_divergence", "position=0-63", "max_value"), None),  # only the texts tell
        (criterion("kl", "kl_divergence", "slovak", "max_value"), "the texts of release give no kl_divergence"),
        (criterion("evals", "accuracy", "ruler/131072", "min_recovery", 0.9), None),
        (criterion("evals", "accuracy", "mmlu/law", "min_recovery", 0.9), None),  # only the data tell
        (criterion("evals", "accuracy", "ruler/262144", "min_recovery", 0.9), "no accuracy of 'ruler/262144'"),
        (criterion("evals", "accuracy", "mmlu", "min_recovery", 0.9999), "cannot be shown by the 14042 items"),
        (criterion("canaries", "failure_rate", "tool-callz"), "of 'tool-callz', but of tool-call, "),
        (criterion("canaries", "must_pass_flips", "tool-call", "max_count"), "but of tool-call-must-pass, "),
    ],
)
def test_what_could_never_pass_is_told_with_what_is_there(
    asked: Criterion, words: str | None, release: Declared
) -> None:
    found = never_passes(asked, release)
    assert found is None if words is None else found is not None and words in found, found


def test_a_gate_refuses_what_no_branch_can_pass_and_names_each_criterion() -> None:
    rules = read_policy(PATHS.policies / "release.yaml")
    request = Request(FAMILY, Target("nowhere", REPOSITORY / "nowhere"), None, "quick", rules)
    (said,) = [each.message for each in prepare(request, PATHS).problems if each.code == "policy-cannot-pass"]
    assert "ruler-128k: the suite quick has no accuracy of 'ruler/131072'" in said
    assert "; and 4 more" in said
    assert "margins-freeform" not in said, "what only warns keeps nothing from being measured"


def test_the_draws_that_are_asked_for_count() -> None:
    """Too few are refused, and more than the suite's may be what a policy asks for."""
    many = criterion("canaries", "failure_rate", "structured", value=0.2).model_copy(update={"min_scored": 5000})
    reasons = [
        never_passes(many, declared_for(Subject(FAMILY, "quick", draws=draws), PATHS)) for draws in (2, None, 1000)
    ]
    assert "it requires 5000 scored, and quick with --draws 2 has " in (reasons[0] or "")
    assert (reasons[1] is None, reasons[2]) == (False, None)


def test_a_figure_without_bounds_takes_thirty_clusters_where_a_policy_says_nothing() -> None:
    """Where only the items are counted there are no more clusters than items; a bounded figure takes what it takes."""
    asked = {
        "perplexity": criterion("evals", "word_perplexity", "wiki", "min_retention", 0.9),
        "margin": criterion("canaries", "decisive_margin_ratio", "tools", "min_recovery", 0.9),
        "bounded": criterion("evals", "answers_changed", "mmlu", "max_value", 0.9),
    }
    for count, said in ((29, "a figure of this kind requires 30 clusters, and s has 29 of "), (30, None)):
        figures = (
            metric_of(ProbeName.EVALS, "word_perplexity").declared("wiki", clusters=count),
            metric_of(ProbeName.CANARIES, "decisive_margin_ratio").declared("tools", items=count),
            metric_of(ProbeName.EVALS, "answers_changed").declared("mmlu", items=count, clusters=count),
        )
        reasons = {name: never_passes(each, Declared("f", "s", figures)) for name, each in asked.items()}
        assert reasons == {
            "perplexity": said and f"{said}wiki",
            "margin": said and f"{said}tools",
            "bounded": None,
        }
    fewer = asked["perplexity"].model_copy(update={"min_clusters": 5})
    few = metric_of(ProbeName.EVALS, "word_perplexity").declared("wiki", clusters=5)
    assert never_passes(fewer, Declared("f", "s", (few,))) is None, "what a policy says itself holds"


def test_texts_of_a_persons_own_may_have_any_slice(release: Declared) -> None:
    slovak = criterion("kl", "kl_divergence", "slovak", "max_value")
    assert never_passes(slovak, declared_for(Subject(FAMILY, "release", corpus=True), PATHS)) is None


def test_what_needs_the_references_weights_is_told_before_a_gate_against_a_pack() -> None:
    told = without_reference_weights(read_policy(PATHS.policies / "release.yaml"))
    assert "errors-within-scheme" in told
    assert "coverage-as-declared" not in told, "what is declared is compared with what the same folder stores"
    intact = criterion("weights", "integrity_faults", kind="max_count")
    kl = criterion("kl", "kl_divergence", kind="max_value").model_copy(update={"id": "kl"})
    assert without_reference_weights(Policy(name="own", criteria=(intact, kl))) is None


# -- the shipped policies


SHIPPED = shipped_policies(PATHS)


def test_published_figures_are_kept_with_their_source() -> None:
    """What the cards ask for; whoever changes a margin of release changes what it claims to hold a branch to."""
    w4a16 = margins_for(read_policy(SHIPPED["release"]), frozenset({"W4A16"})).policy
    margins = {criterion.id: criterion.margin for criterion in w4a16.criteria}
    published = {"kl": (0.014, "88plug"), "mmlu": (0.99, "88plug"), "ruler-128k": (0.97, "88plug")}
    published |= {"perplexity": (0.979, "palmfuture"), "czech-discount": (0, "inferRouter")}
    for name, (value, card) in published.items():
        assert margins[name].value == value
        assert f"{card} " in margins[name].source
        assert "card" in margins[name].source


def test_a_lane_alone_is_judged_as_in_both() -> None:
    """Extended judges all that release judges, and what the cards promise next."""
    whole = read_policy(SHIPPED["release"])
    assert whole.for_lanes(()) == whole.for_lanes(tuple(Lane)) == whole
    for lane in Lane:
        expected = [c.model_copy(update={"lanes": (lane,)}) for c in whole.criteria if lane in c.lanes]
        assert list(whole.for_lanes([lane]).criteria) == expected
    release, extended = (read_policy(SHIPPED[name]).criteria for name in ("release", "extended"))
    assert extended[: len(release)] == release
    assert {read_policy(SHIPPED[name]).max_attempts for name in ("release", "served", "standard+release")} == {3}
    assert {"mmlu-pro", "gpqa-diamond", "math-500", "humaneval"} <= {criterion.id for criterion in extended}


@pytest.mark.parametrize("name", ["release", "sandbox"])
def test_what_fixed_prompts_are_said_to_show_is_their_power(name: str) -> None:
    for margin in (each.margin for each in read_policy(SHIPPED[name]).criteria if each.id.startswith("fixed-prompts")):
        prompts, lost = (int(re.findall(words, margin.source)[0]) for words in (r"what (\d+)", r"may lose (\d+)"))
        said = [float(each) for each in re.findall(r"([\d.]+) times", margin.source)]
        assert said == [round(100 * binom.cdf(lost, prompts, loss), 1) for loss in (0.02, 0.05, 0.1)]
        answers = [items([1] * n + [0] * (prompts - n), [0] * prompts) for n in (lost, lost + 1)]
        assert [margin_test(each, "paired_proportions", margin).p_pass <= 0.025 for each in answers] == [True, False]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "suite"),
    [("sandbox", "sandbox"), ("release", "release"), ("extended", "extended"), ("pre-check", "quick")],
)
def test_shipped_policies_are_sound_for_the_suite_they_are_for(name: str, suite: str) -> None:
    found = check_policy(SHIPPED[name], PATHS, suite=suite)
    assert found.problems == ()
    assert found.checked_for.endswith(f"suite {suite}")
    assert found.remarks == ()


def test_quick_is_pre_checked_and_every_other_suite_is_judged_by_the_familys_policy() -> None:
    family = Family.load(PATHS.families / "qwen3.6-35b-a3b.yaml")
    found = {suite: policy_for(family, suite, PATHS) for suite in ("quick", "release", "extended")}
    assert found == {"quick": "pre-check", "release": "release", "extended": "release"}
    assert check_policy(SHIPPED["pre-check"], PATHS).checked_for.endswith("suite quick")
