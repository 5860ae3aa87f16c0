"""How a verdict looks: a symbol and a word that say it without colour, and a colour beside them."""

from collections.abc import Collection
from dataclasses import dataclass

from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.records import Verdict

GREEN, RED, AMBER, VIOLET, GREY = "#2e9e5b", "#e0483e", "#c98500", "#9468d6", "#8a8f98"
BLUE, TEAL, ORANGE = "#3b7dd8", "#12a594", "#c8721f"
"""What is drawn, on white and on dark grey alike: marks, lines and bars."""

PRIMARY = {"light": "#1d5cb3", "dark": "#7fb2f8"}
"""What is chosen: not in the red of a FAIL, as Streamlit's own theme has it. It is text, so it differs by theme."""

AXES = {"light": "#5a5f69", "dark": "#b4b8c0"}
"""Words on the axes of a chart; Streamlit's own are too faint on white."""


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
    "PASS": Look("✓", "PASS", "green", GREEN, "circle"),
    "FAIL": Look("✗", "FAIL", "red", RED, "x"),
    "INCONCLUSIVE": Look("?", "INCONCLUSIVE", "orange", AMBER, "diamond"),
    "NOT_MEASURED": Look("∅", "NOT MEASURED", "violet", VIOLET, "square-open"),
}

NO_VERDICT = Look("–", "NO VERDICT", "gray", GREY, "circle-open")


def look_of(verdict: Verdict | CriterionVerdict | None) -> Look:
    """The look of a verdict; None is a run that was never judged."""
    return NO_VERDICT if verdict is None else _LOOKS[verdict.value]


NOT_EVALUATED = Look("–", "NOT EVALUATED", "gray", GREY, "circle-open")
"""What was left out since the verdict was certain without it: nothing is wrong with it, and nothing is known."""


def criterion_label(result: CriterionResult, left_out: Collection[str] = ()) -> str:
    """Symbol and words of a criterion, `left_out` being the ids of those that were not evaluated since the verdict was
    certain; a waiver does not change what was found."""
    look = NOT_EVALUATED if result.id in left_out else look_of(result.verdict)
    return f"{look.label}{' (waived)' if result.waived else ''}"
