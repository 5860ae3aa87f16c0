"""The look of a verdict: a symbol and a word, readable without colour, plus a colour."""

from dataclasses import dataclass

from q36eval.gate.report import CriterionVerdict
from q36eval.records import Verdict
from q36eval.reports.plots import COLOURS

RED, AMBER = COLOURS["FAIL"], COLOURS["INCONCLUSIVE"]
TEAL, ORANGE = "#12a594", "#c8721f"
"""Colours of marks, lines and bars, for both white and dark grey."""

PRIMARY = {"light": "#1d5cb3", "dark": "#7fb2f8"}
"""What is chosen: not in the red of a FAIL, as Streamlit's own theme has it. It is text, so it differs by theme."""

AXES = {"light": "#5a5f69", "dark": "#b4b8c0"}
"""Words on the axes of a chart; Streamlit's own are too faint on white."""


@dataclass(frozen=True)
class Look:
    """`colour` is a Streamlit colour name."""

    symbol: str
    word: str
    colour: str

    @property
    def label(self) -> str:
        """Symbol and word."""
        return f"{self.symbol} {self.word}"


_LOOKS = {
    "PASS": Look("✓", "PASS", "green"),
    "FAIL": Look("✗", "FAIL", "red"),
    "INCONCLUSIVE": Look("?", "INCONCLUSIVE", "orange"),
    "NOT_MEASURED": Look("∅", "NOT MEASURED", "violet"),
    "NOT_JUDGED": Look("–", "NOT JUDGED", "gray"),
}

NO_VERDICT = Look("–", "NO VERDICT", "gray")


def look_of(verdict: Verdict | CriterionVerdict | None) -> Look:
    """The look of a verdict; None is a run that was never judged."""
    return NO_VERDICT if verdict is None else _LOOKS[verdict.value]
