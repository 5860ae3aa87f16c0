"""The output of `q36eval kl`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.tables import plain_table, print_run, rows_table
from q36eval.app.figures.kl import GROUPINGS, KLFigures
from q36eval.config.paths import Paths
from q36eval.inert_text import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from q36eval.history import History, RunRecord
    from q36eval.token_files import WorstToken

CHARACTERS_BEFORE = 46
CHARACTERS_AFTER = 16
_SPACE = "\ue000"
"""Replaces a space during escaping, which would join runs of them; a private-use character, so not in any text."""


def _files(run: "RunRecord") -> tuple[Path | None, list["WorstToken"]]:
    """A run's tokens file, if it was written, and its worst tokens."""
    from q36eval.token_files import TOKENS, WORST, read_worst

    tokens, worst = (Paths.default().tokens(run.id) / name for name in (TOKENS, WORST))
    return tokens if tokens.is_file() else None, read_worst(worst) if worst.is_file() else []


def print_summary(run: "RunRecord", history: "History") -> None:
    """Headline, breakdowns, worst tokens, the tokens file, and missing measurements."""
    tokens, worst = _files(run)
    where = [] if tokens is None else [f"every token: {tokens}"]
    print_run(run, history, [*_parts(KLFigures(history.measurements(run.id)), worst), *where])


def kl_body(run: "RunRecord", history: "History") -> dict[str, Any]:
    """The `--json` content besides the measurements: the tokens file, and the worst tokens."""
    import json

    tokens, worst = _files(run)
    return {
        "tokens": None if tokens is None else str(tokens),
        "worst_tokens": [json.loads(token.model_dump_json()) for token in worst],
    }


def _parts(figures: KLFigures, worst: "Sequence[WorstToken]") -> Iterator["RenderableType"]:
    if not figures.measured:
        yield from ("No token was scored.", figures.non_finite())
        return
    yield rows_table(figures.headline(), right=(3,))
    yield figures.non_finite()
    for grouping in GROUPINGS:
        groups = figures.rows(grouping)
        if len(groups) > 1:  # a group of everything is in the headline
            yield ""
            yield rows_table(groups, right=(1, 2, 4, 5, 6))
    if worst:
        yield ""
        yield _worst_table(worst)


def _worst_table(worst: "Sequence[WorstToken]") -> "RenderableType":
    from rich.text import Text

    rows: list[tuple[Any, ...]] = []
    for token in worst:
        text = Text(_visible(token.before)[-CHARACTERS_BEFORE:])
        text.append(f"⟦{_visible(token.text)}⟧", style="bold")
        text.append(_visible(token.after)[:CHARACTERS_AFTER])
        where = f"{token.document}:{token.index}"
        tops = ("–" if top is None else f"⟦{_visible(top)}⟧" for top in (token.reference_top, token.branch_top))
        rows.append((f"{token.forward_kl:.3g}", where, token.kind, " → ".join(tops), text))
    return plain_table(("worst KL", "token", "kind", "expected, ref → branch", "text"), rows, right=(0,))


def _visible(text: str) -> str:
    """One harmless line with visible line feeds and all spaces."""
    kept = text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", _SPACE)
    return plain(kept, limit=10_000).replace(_SPACE, " ")
