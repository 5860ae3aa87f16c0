"""A model's answer as plain text: Markdown emphasis, LaTeX and typographic characters out of the way, places kept."""

import re
import unicodedata
from bisect import bisect_right
from typing import NamedTuple

_ARROWS = "→⇒➔➜➡⟹⟶↦👉"
_REWRITE = re.compile(
    r"(?P<times>(?<=[ \t])\*(?=[ \t])|(?<=[\d)%č])\*(?=[\d(])|[·⋅∙✕✖]"
    r"|\\(?:times|cdot|ast)(?![a-zA-Z]))"
    r"|(?P<over>\\div(?![a-zA-Z])|÷)"
    r"|(?P<fraction>\\[dtc]?frac(?![a-zA-Z])[ \t]{0,4}(?=\{))"
    r"|(?P<middle>\}[ \t]{0,4}\{)"
    rf"|(?P<arrow>\\(?:Rightarrow|rightarrow|Longrightarrow|longrightarrow|implies|to|therefore)(?![a-zA-Z])"
    rf"|[{_ARROWS}]\ufe0f?|[-=]{{1,2}}>)"
    r"|(?P<about>\\(?:approx|doteq|simeq|sim)(?![a-zA-Z])|[≈≐≙≅])"
    r"|(?P<less_or_equal>\\leq?(?![a-zA-Z])|\\leqslant)|(?P<more_or_equal>\\geq?(?![a-zA-Z])|\\geqslant)"
    r"|(?P<less>\\lt(?![a-zA-Z])|&lt;)|(?P<more>\\gt(?![a-zA-Z])|&gt;)"
    r"|(?P<comma>\{,\})"
    r"|(?P<percent>\\%)"
    r"|(?P<dollar>\\\$)"
    r"|(?P<space>[\u00a0\u2007\u2009\u202f]|\\[,;: ]|\\q?quad(?![a-zA-Z])|\\hspace\{[^{}\n]{0,9}\}|~(?!~)(?<!~~))"
    r"|(?P<minus>[\u2212\u2013\u2012\u2011])"
    r"|(?P<letter>[^\W\d_][\u0300-\u036f])"
    r"|(?P<line>\\\\(?:\[[^\]\n]{0,9}\])?|<br[ \t]?/?>)"
    r"|(?P<cell>&)"
    r"|(?P<struck>~~[^~\n]{0,200}~~)"
    r"|(?P<shop_a>[🅰Ⓐ]\ufe0f?)|(?P<shop_b>[🅱Ⓑ]\ufe0f?)|(?P<shop_c>[Ⓒ])"
    r"|(?P<begin>\\(?:begin|end)\{[a-zA-Z*]{1,20}\}(?:\{[|lcr@ ]{0,12}\})?)"
    r"|(?P<open>\{)|(?P<close>\})"
    r"|(?P<nothing>[*`_$]|\\[()\[\]!{}]|\\[a-zA-Z]{1,20}\*?|[\u200b\u200d\ufe0f\ufeff])"
)
_REPLACEMENTS = {
    "times": "×",
    "over": "÷",
    "fraction": "",
    "middle": "",
    "arrow": "→",
    "about": "≈",
    "less_or_equal": "≤",
    "more_or_equal": "≥",
    "less": "<",
    "more": ">",
    "comma": ",",
    "percent": "%",
    "dollar": "$",
    "space": " ",
    "minus": "-",
    "line": "\n",
    "cell": " ",
    "struck": " ",
    "shop_a": "A",
    "shop_b": "B",
    "shop_c": "C",
    "begin": "",
    "open": "",
    "close": "",
    "nothing": "",
}
_FRACTION, _NUMERATOR, _DENOMINATOR = "fraction", "numerator", "denominator"


class Plain(NamedTuple):
    """`text` to read; `original(at)` says where in the answer a character of it stands; `struck` is what was struck
    through."""

    text: str
    starts: list[int]
    offsets: list[int]
    struck: tuple[str, ...] = ()

    def original(self, at: int) -> int:
        """The place in the answer of `text[at]`."""
        return at + self.offsets[bisect_right(self.starts, at) - 1]


def plain(answer: str) -> Plain:
    """Composed letters, ordinary spaces, minus and multiplication signs; no emphasis, no LaTeX around numbers.

    LaTeX fractions become quotients in parentheses, its line breaks become line breaks, arrows one arrow.
    """
    parts: list[str] = []
    starts, offsets = [0], [0]
    struck: list[str] = []
    braces: list[str] = []
    position = length = 0
    for match in _REWRITE.finditer(answer):
        kind = match.lastgroup or "nothing"
        if kind == "letter":
            new = unicodedata.normalize("NFC", match.group())
        elif kind in ("fraction", "open", "middle", "close"):
            new = _braces(kind, braces)
        else:
            new = _REPLACEMENTS[kind]
        if kind == "struck":
            struck.append(match.group())
        parts += (answer[position : match.start()], new)
        length += match.start() - position + len(new)
        position = match.end()
        if length + offsets[-1] != position:
            starts.append(length)
            offsets.append(position - length)
    parts.append(answer[position:])
    return Plain("".join(parts), starts, offsets, tuple(struck))


def _braces(kind: str, braces: list[str]) -> str:
    """What a brace becomes: a parenthesis where it belongs to a fraction, nothing elsewhere. `braces` are open ones."""
    if kind == "fraction":
        braces.append(_FRACTION)
        return "("
    if kind == "open":
        if braces and braces[-1] == _FRACTION:
            braces[-1] = _NUMERATOR
            return "("
        braces.append("")
        return ""
    closed = braces.pop() if braces else ""
    if kind == "middle":
        braces.append(_DENOMINATOR if closed == _NUMERATOR else closed)
        return ")÷(" if closed == _NUMERATOR else " "
    return "))" if closed == _DENOMINATOR else ""
