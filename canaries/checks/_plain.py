"""A model's answer as plain text: Markdown emphasis, LaTeX and typographic characters out of the way, places kept."""

import re
import unicodedata
from bisect import bisect_right
from typing import NamedTuple

_REWRITE = re.compile(
    r"(?P<times>(?<=[ \t])\*(?=[ \t])|[·⋅∙]|\\times(?![a-z])|\\cdot(?![a-z]))"
    r"|(?P<comma>\{,\})"
    r"|(?P<percent>\\%)"
    r"|(?P<space>[\u00a0\u2007\u2009\u202f]|\\[,;: ])"
    r"|(?P<minus>[\u2212\u2013\u2012])"
    r"|(?P<letter>[^\W\d_][\u0300-\u036f])"
    r"|(?P<nothing>[*`_${}]|\\[()\[\]!]|\\(?:text|mathbf|mathrm|textbf|boxed)(?=\{))"
)
_REPLACEMENTS = {"times": "×", "comma": ",", "percent": "%", "space": " ", "minus": "-", "nothing": ""}


class Plain(NamedTuple):
    """`text` to read; `original(at)` says where in the answer a character of it stands."""

    text: str
    starts: list[int]
    offsets: list[int]

    def original(self, at: int) -> int:
        """The place in the answer of `text[at]`."""
        return at + self.offsets[bisect_right(self.starts, at) - 1]


def plain(answer: str) -> Plain:
    """Composed letters, ordinary spaces, minus and multiplication signs; no emphasis, no LaTeX around numbers."""
    parts: list[str] = []
    starts, offsets = [0], [0]
    position = length = 0
    for match in _REWRITE.finditer(answer):
        kind = match.lastgroup or "nothing"
        new = unicodedata.normalize("NFC", match.group()) if kind == "letter" else _REPLACEMENTS[kind]
        parts += (answer[position : match.start()], new)
        length += match.start() - position + len(new)
        position = match.end()
        if length + offsets[-1] != position:
            starts.append(length)
            offsets.append(position - length)
    parts.append(answer[position:])
    return Plain("".join(parts), starts, offsets)
