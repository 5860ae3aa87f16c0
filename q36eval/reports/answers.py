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


A_LINE = 4
"""So many families stand in one line: longer ones would be cut."""


def answer_lines(report: GateReport) -> list[tuple[str, str]]:
    """The id of every criterion that compares answers, and what is to be known of them, in short lines."""
    lines = []
    for result in report.criteria:
        left_out = () if result.competence is None else result.competence.left_out
        chunks = [left_out[start : start + A_LINE] for start in range(0, len(left_out), A_LINE)]
        told = [_summary(result), *(f"{LEFT_OUT}: {_listed(chunk)}" for chunk in chunks)]
        lines += [(result.id, words) for words in told if words]
    return lines


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
