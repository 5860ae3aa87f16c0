"""The answers behind a comparison, in words: what the reference can do of them, and why those of either side fail."""

from collections.abc import Iterable, Sequence

from q36eval.gate.competence import causes_words, family_words, is_able
from q36eval.gate.policy import Informative
from q36eval.gate.report import CriterionResult, GateReport
from q36eval.records import FailureCauses, FamilyCompetence, Measurement

TITLE = "What the reference can do, and why answers are not right"

NOT_RIGHT = "not right"
"""The column that `not_right_cell` stands in."""

LEFT_OUT = "left out, since the reference cannot do enough of it"

DEFAULTS = Informative()
"""What a policy asks of the reference where it says nothing."""


NAMED = 4
"""So many families of a criterion are named where people read; the pages and the JSON report name all."""


def answer_lines(report: GateReport) -> list[tuple[str, str]]:
    """The id of every criterion that compares answers, and what is to be known of them, in short lines."""
    told = [(result.id, words) for result in report.criteria for words in (_summary(result), _left_out_short(result))]
    return [(name, words) for name, words in told if words]


def _left_out_short(result: CriterionResult) -> str:
    """The same as `left_out_text`, in one line however many they are."""
    families = () if result.competence is None else result.competence.left_out
    if len(families) <= NAMED:
        return left_out_text(result)
    others = len(families) - NAMED
    return f"{len(families)} families {LEFT_OUT}, among them {_listed(families[:NAMED])} (and {others} more)"


def _summary(result: CriterionResult) -> str:
    return "; ".join(filter(None, (able_text(result), not_right_text(result.causes))))


def answers_text(result: CriterionResult) -> str:
    """What the reference solves, which families were left out and why, and both sides' failures by cause."""
    return "; ".join(filter(None, (_summary(result), left_out_text(result))))


def able_text(result: CriterionResult) -> str:
    """`the reference solves 3,612 of 3,800 items`; empty where no answers were compared, or nothing is known."""
    found = result.competence
    return f"the reference solves {found.informative:,} of {found.items:,} items" if found and found.items else ""


def left_out_text(result: CriterionResult) -> str:
    """Every family that dropped out, with its counts; empty where none did."""
    found = result.competence
    if found is None or not found.left_out:
        return ""
    return f"{LEFT_OUT}: {_listed(found.left_out)}"


def not_right_text(causes: FailureCauses | None) -> str:
    """`not right: branch 20 wrong, 5 cut off at their budget; reference none`; empty where that is not known."""
    if causes is None:
        return ""
    branch, reference = causes_words(causes.branch), causes_words(causes.reference)
    return f"{NOT_RIGHT}: branch {branch or 'none'}; reference {reference or 'none'}"


def not_right_cell(causes: FailureCauses | None) -> str:
    """The same for a column: `branch 20 wrong, 5 cut off at their budget; reference 22 wrong`."""
    return not_right_text(causes).removeprefix(f"{NOT_RIGHT}: ") or "–"


def unable_words(measurements: Iterable[Measurement]) -> list[str]:
    """A sentence for every family of which the reference can do too little for a comparison to say anything."""
    families = {family.name: family for measurement in measurements for family in measurement.competence or ()}
    unable = [family for family in families.values() if not is_able(family, DEFAULTS)]
    return [
        f"No evidence: the reference solves {family_words(family)}."
        for family in sorted(unable, key=lambda family: family.name)
    ]


def _listed(families: Sequence[FamilyCompetence]) -> str:
    return ", ".join(family_words(family) for family in families)
