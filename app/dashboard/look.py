"""How a verdict looks: a symbol and a word that say it without colour, and a colour beside them."""

from dataclasses import dataclass

from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.records import Verdict


@dataclass(frozen=True)
class Look:
    """`colour` is a Streamlit colour name; `hex_colour` stands out on white and on dark grey alike."""

    symbol: str
    word: str
    colour: str
    hex_colour: str
    marker: str

    @property
    def label(self) -> str:
        """Symbol and word."""
        return f"{self.symbol} {self.word}"


_LOOKS = {
    "PASS": Look("✓", "PASS", "green", "#2e9e5b", "circle"),
    "FAIL": Look("✗", "FAIL", "red", "#e0483e", "x"),
    "INCONCLUSIVE": Look("?", "INCONCLUSIVE", "orange", "#c98500", "diamond"),
    "NOT_MEASURED": Look("∅", "NOT MEASURED", "violet", "#9468d6", "square-open"),
}

NO_VERDICT = Look("–", "NO VERDICT", "gray", "#8a8f98", "circle-open")


def look_of(verdict: Verdict | CriterionVerdict | None) -> Look:
    """The look of a verdict; None is a run that was never judged."""
    return NO_VERDICT if verdict is None else _LOOKS[verdict.value]


def criterion_label(result: CriterionResult) -> str:
    """Symbol and words of a criterion; a waiver does not change what was found."""
    return f"{look_of(result.verdict).label}{' (waived)' if result.waived else ''}"
