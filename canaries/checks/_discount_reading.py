"""An answer read once: its plain text, lines, amounts and verdicts, and where it corrects itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from q36eval.canaries.checks._claims import Claims, read_claims, row_lines
from q36eval.canaries.checks._conclusion import verdicts
from q36eval.canaries.checks._lexicon import Meaning
from q36eval.canaries.checks._plain import Plain, plain
from q36eval.canaries.checks._tokens import Kind, Token, lines_of
from q36eval.canaries.checks._unclear import Unclear, unclear_places
from q36eval.canaries.checks._verdict import Verdict


@dataclass(frozen=True)
class Correction:
    """Where the answer takes back what it said before: `start` in the plain text, and the line it stands on."""

    start: int
    line: int
    shop: str


@dataclass(frozen=True)
class Reading:
    """Everything that the rules judge."""

    plain: Plain
    lines: list[list[Token]]
    claims: Claims
    verdicts: list[Verdict]
    corrections: list[Correction]
    unclear: list[Unclear]

    def corrected(self, start: int, line: int, shop: str = "") -> bool:
        """Whether what stands at `start` is taken back later, on its line or by a correction that begins a line."""
        for one in self.corrections:
            begins = self.lines[one.line][0].start == one.start
            of_it = not one.shop or not shop or one.shop == shop
            if start < one.start and (line == one.line or (begins and of_it)):
                return True
        return False

    def sentences(self) -> Iterator[tuple[int, str]]:
        """(place, text) of every sentence of two words or more, and of every line that holds several."""
        for line in self.lines:
            start = 0
            for at, token in enumerate(line):
                if token.kind is Kind.STOP or at == len(line) - 1:
                    said = line[start : at + 1]
                    if sum(one.kind in (Kind.WORD, Kind.SHOP, Kind.NUMBER) for one in said) >= 3:
                        yield said[0].start, self.plain.text[said[0].start : said[-1].end]
                    start = at + 1


def read_answer(text: str, ends_with_line: bool = False) -> Reading:
    """Read `text`. Where a fixed last line is demanded it is judged by itself, so its verdict is left out."""
    read = plain(text)
    lines = lines_of(read.text)
    if ends_with_line:
        last = max((number for number, line in enumerate(lines) if line), default=-1)
        lines = lines[:last] if last >= 0 else lines
    claims = read_claims(lines)
    said = verdicts(lines, row_lines(lines))
    return Reading(read, lines, claims, said, list(_corrections(lines)), list(unclear_places(lines)))


def _corrections(lines: list[list[Token]]) -> Iterator[Correction]:
    for number, line in enumerate(lines):
        for at, token in enumerate(line):
            if not token.word.means(Meaning.CORRECTION) and not _counts_again(line, at):
                continue
            shops = {one.shop for one in line[at:] if one.shop}
            yield Correction(token.start, number, shops.pop() if len(shops) == 1 else "")
            break


def _counts_again(line: list[Token], at: int) -> bool:
    """ "ne, počítám znovu", "ještě jednou": where the sums begin anew."""
    lower = line[at].lower
    if lower.startswith("přepočít"):
        return True
    beside = {token.lower for token in line[max(0, at - 2) : at + 3]}
    counts = any(word.startswith(("počít", "spočít", "počet")) for word in beside)
    return (lower == "znovu" and counts) or (lower == "jednou" and "ještě" in beside and counts)
