"""The shipped policies of the real family: sound for the suites they are for, and what they claim to hold branches to.

That they can be passed, and what fails them, is in `tests/app/satisfiable`.
"""

import re
from pathlib import Path

import pytest
from scipy.stats import binom

from q36eval.app.policies.files import policy_for, shipped_policies
from q36eval.app.policies.policy_check import check_policy
from q36eval.config import Family, Paths
from q36eval.gate.margins import margins_for
from q36eval.gate.policy_file import read_policy
from q36eval.records import Lane
from q36eval.stats import margin_test
from tests.q36eval.stats.evidence import items

REPOSITORY = Path(__file__).parents[3]
PATHS = Paths(REPOSITORY, REPOSITORY / "no-state")
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
