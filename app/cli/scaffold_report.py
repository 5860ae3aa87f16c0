"""What `q36eval canaries new` says of the canary it made: remarks for its reviewer, and where two models part."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from q36eval.app.figures.canary_items import choices_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from q36eval.canaries.scaffold import Wanted
    from q36eval.run.prompt_comparison import Comparison

ANSWER_CHARACTERS = 120


def comparison_lines(comparison: "Comparison | None", passed: "Mapping[str, bool]") -> list[str]:
    """Both models' outcomes, and the first token at which they part with both models' likeliest ones."""
    if comparison is None:
        return []
    lines = []
    if not passed["reference"]:
        lines.append(
            "The reference itself answers it wrong: such a prompt is no canary, and is never held against a branch."
        )
    if passed["branch"]:
        lines.append(
            "The branch answers it right in process: what went wrong may lie in the server, its parsers or its batch."
        )
    for name, text in (("reference", comparison.reference), ("branch", comparison.branch)):
        outcome = "right" if passed[name] else "wrong"
        lines.append(
            f"the {name} ({outcome}) says {text[:ANSWER_CHARACTERS]!r}{'…' if len(text) > ANSWER_CHARACTERS else ''}"
        )
    parting = comparison.parting
    if parting is None:
        return [*lines, "Their answers part at no token."]
    lines.append(f"They part at token {parting.position + 1}, after {parting.before[-40:]!r}:")
    for name, said, top in (
        ("reference", parting.reference_said, parting.reference_top),
        ("branch", parting.branch_said, parting.branch_top),
    ):
        lines.append(f"  the {name} says {said!r}; its choices: {choices_words(top)}")
    return lines


def comparison_json(comparison: "Comparison | None", passed: "Mapping[str, bool]") -> dict[str, Any] | None:
    """The same as JSON values; None where no models answered."""
    return None if comparison is None else asdict(comparison) | {"passed": dict(passed)}


def remarks(
    body: dict[str, Any], source: str, wanted: "Wanted", remarks_before: "Sequence[str]", *, right_given: bool
) -> list[str]:
    """What stands as comments on top of the file: what was guessed, and must be checked by hand."""
    lines = [f"Made from {source}. Check by hand, then delete these remarks:"]
    lines.append("- the messages: no names, addresses or secrets of customers;")
    origin = "as given" if right_given else "a model's own, of the reference: read every word of it"
    lines.append(f"- the right answer under answer: {origin};")
    if not wanted.checks:
        lines.append(f"- the checks, {', '.join(body['checks'])}: guessed from the form of the right answer;")
    expected = body["must_pass"][0]["expected"]
    if "schema" in expected and "schema" not in (wanted.expected or {}):
        lines.append("- the schema under expected: where the request had none, inferred from the one right value;")
    if "decisive" in body["must_pass"][0]:
        lines.append("- decisive: where the right answer and the wrong one first part; is that where it is decided?")
    else:
        lines.append("- decisive: no place was found; margins are taken at what the checks find.")
    return [*lines, *remarks_before]
