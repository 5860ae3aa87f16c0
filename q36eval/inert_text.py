"""Text from models, engines and people, made harmless for a line, Markdown or HTML. Imports nothing of the gate."""

import html as _html
import re

MAX_CHARACTERS = 400

SENTENCE = 4000
"""Characters of one sentence for a person: long enough for every name that one lists."""

_HOSTILE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1 controls drive terminals
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible and bidirectional marks reorder what one reads
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0"  # as invisible
    "\ufff9-\ufffb\U000e0000-\U000e0fff"  # annotations and tags, which spell sentences that no screen shows
    "\ufffe\uffff\ud800-\udfff"  # cannot be written as XML or UTF-8
    "]"
)

_COMMAND = re.compile(r"#(?=#\w*\[)|:(?=:)")
"""How a line of output speaks to the runner of a pipeline: `::error::`, `##[error]`, `##vso[…]`, `##teamcity[…]`.

Matched is what a space must follow: of three colons each is set apart, since a line may be broken at a space."""

_COMMAND_OF_A_LINE = re.compile(r"#(?=#\w*\[)|^\s*:(?=:)", re.MULTILINE)
"""The same of lines that nothing breaks: two colons are a command only where a line begins."""

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "#": "&#35;"})
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")


def plain(text: str, limit: int = MAX_CHARACTERS) -> str:
    """One line without control, bidirectional or unwritable characters (shown as U+FFFD), cut at `limit`.

    What the runner of a pipeline would read as a command in its log is broken by a space.
    """
    line = _HOSTILE.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))
    line = _COMMAND.sub(r"\g<0> ", line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


LONGEST_NAME = 48


def name(text: str) -> str:
    """A name among our own words: one word that cannot be taken for several, and not longer than a name."""
    word = re.sub(r"\s", "\N{OPEN BOX}", text)
    if word.startswith("/") and len(word) > LONGEST_NAME:  # of a path the end tells more
        word = f"…{word[1 - LONGEST_NAME :]}"
    return plain(word, LONGEST_NAME) or "\N{OPEN BOX}"


MAX_BLOCK_CHARACTERS = 20_000

_HOSTILE_IN_BLOCKS = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, except tab and line feed
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible and bidirectional marks reorder what one reads
    "\ufff9-\ufffb\U000e0000-\U000e0fff"  # annotations and tags, which spell sentences that no screen shows
    "\ufffe\uffff\ud800-\udfff"  # cannot travel to a browser as UTF-8
    "]"
)


def block(text: str) -> str:
    """Several lines without control or bidirectional characters (shown as U+FFFD); tabs and line feeds stay."""
    cleaned = _HOSTILE_IN_BLOCKS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
    if len(cleaned) <= MAX_BLOCK_CHARACTERS:
        return cleaned
    return f"{cleaned[:MAX_BLOCK_CHARACTERS]}\n[cut here: {len(cleaned)} characters in all]"


def fenced(text: str) -> list[str]:
    """`block` text as a code block of Markdown, line by line: nothing in it is read as markup, or ends it.

    Nor, where the report is printed into the log of a pipeline, as a command to its runner: a space breaks that.
    """
    shown = _COMMAND_OF_A_LINE.sub(r"\g<0> ", block(text))
    ticks = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, ticks + 1)
    return [f"{fence}text", *shown.splitlines(), fence]


def markdown(text: str, limit: int = MAX_CHARACTERS) -> str:
    """`plain` text that Markdown, its HTML and GitHub's mentions and autolinks leave as it is."""
    escaped = plain(text, limit).translate(_ENTITIES)
    escaped = _MARKDOWN.sub(r"\\\1", escaped)
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;")


def html(text: str, limit: int = MAX_CHARACTERS) -> str:
    """`plain` text for the content or a quoted attribute of an HTML or SVG element."""
    return _html.escape(plain(text, limit), quote=True)


def storable(text: str) -> str:
    """Lone surrogates, which a server's JSON can carry but UTF-8 cannot, become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
