"""Contrast of what is drawn, in both themes."""

import pytest

from q36eval.app.dashboard import verdict_style
from q36eval.reports.plots import BLUE, COLOURS, GREY

WHITE, DARK = "#ffffff", "#1d1c19"
TINTED = {"light": "#dfe8f3", "dark": "#27303c"}
"""What is chosen stands on a tint of its own colour."""


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", [*COLOURS.values(), BLUE, GREY, verdict_style.TEAL, verdict_style.ORANGE])
def test_marks_stand_out_in_both_themes(colour: str) -> None:
    """WCAG asks 3:1 of what is not text."""
    assert min(contrast(colour, background) for background in (WHITE, DARK)) >= 3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_can_be_read_in_both_themes(theme: str) -> None:
    background = {"light": WHITE, "dark": DARK}[theme]
    assert contrast(verdict_style.AXES[theme], background) >= 4.5
    assert min(contrast(verdict_style.PRIMARY[theme], one) for one in (background, TINTED[theme])) >= 4.5
