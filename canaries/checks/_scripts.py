"""Letters of scripts that an answer is not to be written in."""

import re
from collections.abc import Sequence
from functools import lru_cache

import regex

from q36eval.canaries.checks._base import shown


def scripts_exist(scripts: Sequence[str]) -> None:
    """Refuse a name that is no Unicode script.

    Raises:
        ValueError: the sentence names it.
    """
    for script in scripts:
        try:
            _foreign((script,))
        except regex.error as error:
            raise ValueError(f"there is no Unicode script {shown(script)}") from error


def first_foreign(text: str, scripts: Sequence[str]) -> int | None:
    """The first letter of `text` that belongs to none of `scripts`; None where there is none."""
    found = _foreign(tuple(scripts)).search(text)
    return None if found is None else int(found.start())


@lru_cache(maxsize=256)
def _foreign(scripts: tuple[str, ...]) -> "regex.Pattern[str]":
    """Letters of no script in `scripts`. A Greek letter that stands alone is a sign of mathematics ("Δ = 50 Kč")."""
    for script in scripts:
        if not re.fullmatch(r"[A-Za-z_]{1,40}", script):
            raise regex.error(f"{script!r} is no name")
    known = "".join(rf"\p{{Script={script}}}" for script in scripts)
    sign = r"(?<!\p{L})\p{Script=Greek}(?!\p{L})"
    return regex.compile(rf"(?!{sign})[\p{{L}}--[{known}\p{{Script=Common}}\p{{Script=Inherited}}]]", regex.V1)
