"""What a branch is called, by which it declares that it is quantized.

A recipe that matches no module exports without an error, and its figures are those of a perfect branch.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import yaml

from q36eval.checkpoints.inspection.findings import Finding, Section
from q36eval.schemes import mixture_name, parts_of

MOST_BYTES = 2**16
"""Of a model card are read."""
NOT_EXCLUDED = "unquantized-and-not-excluded"
"""The rule of weights that are stored plain and declared quantized."""
LITTLE = 0.25
"""Below this share of quantized parameters a recipe matched too little, where plain weights are declared quantized."""
LEAST = 0.01
"""Below this share of quantized parameters, of a branch that is called quantized, a recipe matched next to nothing: the
output head alone is 1.4 % of Qwen3.6-35B-A3B."""
_SCHEME = re.compile(
    r"(?<![a-z0-9])((?:nvfp4|mxfp[468]|fp[48])(?:a\d+|[-_]?dynamic)?|int[2-8]|w[1-8]a(?:fp)?(?:4|8|16)(?:kv\d+|fp8)?|nf4|"
    r"gptq|awq|hqq|bnb|exl[23]|auto-?round|[2-8]-?bits?|iq[1-4]_\w+|q[2-8]_\w+)(?![a-z0-9])",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"(un|de)quantized|(?<![a-z0-9])(bf16|fp16)[-_]from", re.IGNORECASE)
"""How weights are called that were quantized once, or were trained to be."""
_BITS = re.compile(r"(?:fp|int|w|iq|q|^)([1-8])(?!\d)", re.IGNORECASE)
_OF_LLAMA_CPP = re.compile(r"\bi?q([1-8])_", re.IGNORECASE)
_FALLBACK = {"1": "4", "2": "4", "3": "4", "4": "5", "6": "8"}
"""Bits for rows that 256 does not divide (`tensor_type_fallback` of llama.cpp's llama-quant.cpp)."""


def named_scheme(text: str) -> str | None:
    """The schemes that a name, a heading or a description names, in order; None without any."""
    found = [] if _PLAIN.search(text) else [match[0] for match in _SCHEME.finditer(text)]
    return ", ".join(dict.fromkeys(found)) or None


def _bits(schemes: Collection[str]) -> set[str]:
    """The widths of weights, in bits, that names of schemes tell."""
    return {match[1] for name in schemes for part in name.split(", ") if (match := _BITS.search(part))}


def declarations(folder: Path, named: Mapping[str, str]) -> dict[str, str]:
    """Which scheme is declared where: in `named`, texts by what they are (`the folder's name`), and in the model card.

    A card declares by its heading, or by its metadata (`base_model_relation: quantized`).
    """
    said = {where: scheme for where, text in named.items() if (scheme := named_scheme(text)) is not None}
    heading = next((line for line in _card(folder)[1].splitlines() if line.startswith("# ")), "")
    card = named_scheme(heading) or ("a quantization" if _is_quantized(folder) else None)
    return said | ({} if card is None else {"the model card": card})


def _is_quantized(folder: Path) -> bool:
    # what the library raises of a date that does not exist, of deep nesting, of an empty number
    with suppress(yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        metadata = yaml.safe_load(_card(folder)[0])
        return isinstance(metadata, dict) and metadata.get("base_model_relation") == "quantized"
    return False


def _card(folder: Path) -> tuple[str, str]:
    """The metadata of the model card, and its text; both empty without a card."""
    with suppress(OSError), (folder / "README.md").open("rb") as stream:
        text = stream.read(MOST_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
        if text.startswith("---\n"):
            metadata, _, rest = text.removeprefix("---\n").partition("\n---")
            return metadata, rest
        return "", text
    return "", ""


def declared_findings(
    declared: Mapping[str, str],
    scheme: str | None,
    stored: Mapping[str, int] | None,
    share: float | None,
    rules: Collection[str] = (),
) -> list[Finding]:
    """What is declared by names, and as `scheme` (of `--scheme`), against the quantized weights by scheme.

    `share` is that of the parameters that are quantized; None where it is not known. `rules` are those of the other
    findings: where weights are plain that no list excludes, a small share is a recipe that matched too little.
    """
    if stored is None:
        return []
    if not stored:
        said = {**declared, **({} if scheme is None else {"--scheme": scheme})}
        if not said:
            return []
        named = "; ".join(f"{what} by {where}" for where, what in said.items())
        return [_finding(f"declared are {named}, and no stored weight is quantized: the recipe matched no module.")]
    findings = []
    missing = [] if scheme is None else sorted(parts_of(scheme) - stored.keys())
    if missing:
        message = f"--scheme declares {', '.join(missing)}, and the stored weights are {mixture_name(stored)}."
        findings.append(_finding(message))
    told, kept = _bits(declared.values()), _bits(stored)
    usual = _bits([max(stored.keys() - {"MXFP4"} or stored, key=stored.__getitem__)])
    fallback = {_FALLBACK.get(bits, bits) for bits in _OF_LLAMA_CPP.findall("; ".join(declared.values()))}
    if told and kept and (not (told | fallback) & kept or max(usual, default="8") < min(told)):
        named = "; ".join(f"{what} by {where}" for where, what in declared.items())
        findings.append(_finding(f"declared are {named}, and the stored weights are {mixture_name(stored)}."))
    called = declared or scheme is not None
    if share is not None and share < (LITTLE if NOT_EXCLUDED in rules else LEAST if called else 0):
        findings.append(_finding(f"only {share:.1%} of the parameters are quantized.", "little-quantized"))
    return findings


def _finding(message: str, rule: str = "declared-scheme-absent") -> Finding:
    return Finding(section=Section.COVERAGE, rule=rule, subject="the checkpoint", message=message)
