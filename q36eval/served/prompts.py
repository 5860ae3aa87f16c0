"""Prompts for a served model: from the shipped canaries, identical in every run, in the branch's own template."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

from q36eval.canaries.cases import Case, cases_of
from q36eval.canaries.specification import STANDARD, for_family, load_specs
from q36eval.chat import rendered_chat
from q36eval.config import Family
from q36eval.errors import UsageError

ANSWER_TOKENS = 32
"""Tokens of an answer that is only compared with itself: enough to differ, few enough for thousands of answers."""
THOUGHT_TOKENS = 512
"""In addition to a canary's own budget, if the model thinks first."""
LONG_TOKENS = 1024
"""Tokens of a prompt for prefix cache tests; hybrid models cache whole blocks of hundreds of tokens."""
AFTER_BLOCK = 32
"""Tokens of a long prompt after its last whole block."""
RECALL = "recall"
"""The canary whose answer is at the beginning of its prompt: it depends on the cached part."""
BLOCKS = 2.5
"""The number of cache blocks in such a prompt."""


@dataclass(frozen=True)
class Prompt:
    """One conversation to answer, and its token ids by the branch's own template and tokenizer.

    `expected` is the canary's right answer, `case` the canary's question behind it.
    """

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    thinking: bool
    budget: int
    token_ids: tuple[int, ...]
    case: Case | None = None


LATER_WORDS = 40
"""Words of the text in every later turn of a conversation: ten turns fit a context of 4,096 tokens."""
MANY_TOOLS_CONTEXT = 16_384
"""Tokens that hold 64 tools and an answer; a model with a shorter context is too small for calls among many tools."""
MOST_TEXTS = 10_000
"""The maximum of texts joined for one prompt."""


class Recalled(NamedTuple):
    """A draw of the canary `recall` in its parts: a record, irrelevant prose, and the question."""

    case: Case
    record: str
    prose: str
    question: str


class Prompts:
    """The prompts for one branch: its template, its tokenizer, and its family's abilities."""

    def __init__(self, tokenizer: Any, family: Family | None) -> None:
        self._tokenizer = tokenizer
        self._cases = _drawn(family, None)
        roomy = family is not None and family.context_length >= MANY_TOOLS_CONTEXT
        self._offering = [*self._cases, *(_drawn(family, STANDARD) if roomy else ())]
        self.tools = any(case.tools for cases in self._offering for case in cases)
        """False if the family's template has no tools, or its calls are not parsed."""
        self.thinks = family is None or family.template.thinking != "never"

    def short(self, count: int) -> list[Prompt]:
        """Single questions without tools, of all kinds in turn.

        Raises:
            UsageError: fewer exist.
        """
        plain = _cases_where(self._cases, lambda case: not case.tools and len(case.messages) <= 2, count)
        return [self._rendered(case.name, case.messages, (), False, ANSWER_TOKENS, case) for case in plain]

    def long(self, count: int, block_tokens: int | None, mark: str = "") -> list[Prompt]:
        """A record, a long text, and the question about the record; `mark` begins all, and no two continue identically.

        Each ends soon after a block of the cache: a hybrid model's state is stored at few places, among them the last
        block end of a prompt.
        """
        wanted = max(LONG_TOKENS, int(BLOCKS * (block_tokens or 0)))
        recalled = self._recalled(count)
        found = []
        for number, each in enumerate(recalled):
            prose = self._prose(recalled, number, wanted)
            prompt = self._recalling(each, f"{mark}{each.record}", prose)
            if block_tokens is not None:
                surplus = (len(prompt.token_ids) - AFTER_BLOCK) % block_tokens
                prose = self._tokenizer.decode(self._encoded(prose)[: -surplus or None])
                prompt = self._recalling(each, f"{mark}{each.record}", prose)
            found.append(prompt)
        return found

    def _recalling(self, each: "Recalled", record: str, prose: str) -> Prompt:
        content = f"{record}\n{prose}\n{each.question}"
        return self._rendered(each.case.name, _said(content), (), False, ANSWER_TOKENS, each.case)

    def for_chat(self, count: int) -> list[Prompt]:
        """Requests that one of 2 to 64 tools fits, and requests without a fitting tool; half of them with a thought.

        Without tools any question, and without a switch for reasoning no thoughts.
        """
        asked = _cases_where(self._offering, lambda case: bool(case.tools) or not self.tools, count)
        result = []
        for number, case in enumerate(asked):
            thinking = self.thinks and bool(number % 2)
            budget = case.generation.max_new_tokens + (THOUGHT_TOKENS if thinking else 0)
            name = f"{case.name}{' thinking' if thinking else ''}"
            result.append(self._rendered(name, case.messages, case.tools, thinking, budget, case))
        return result

    def conversations(self, count: int, turns: int) -> list[list[Prompt]]:
        """Conversations whose every turn asks about the record of the first one, after more text.

        So no turn can be answered from its own words alone: it depends on the cached earlier ones.
        """
        recalled = self._recalled(count)
        found = []
        for number, each in enumerate(recalled):
            texts = [recalled[(number + turn) % count].prose for turn in range(turns)]
            contents = [f"{each.record}\n{texts[0]}\n{each.question}"]
            contents += [f"{' '.join(text.split()[:LATER_WORDS])}\n{each.question}" for text in texts[1:]]
            found.append(
                [
                    self._rendered(f"{each.case.name} turn {turn}", _said(content), (), False, ANSWER_TOKENS, each.case)
                    for turn, content in enumerate(contents, 1)
                ]
            )
        return found

    def continued(self, turn: Prompt, history: Sequence[dict[str, Any]]) -> Prompt:
        """A turn's question after the whole earlier conversation."""
        messages = (*history, *turn.messages)
        return self._rendered(turn.name, messages, (), False, turn.budget, turn.case)

    def filler(self, number: int, tokens: int) -> tuple[int, ...]:
        """Text of that many tokens, with a beginning different from any other filler's."""
        head = self._encoded(f"{number:08d} ")
        body = self._encoded("\n".join(case.answer for cases in self._cases for case in cases[:8]))
        return (*head, *islice(cycle(body), tokens - len(head)))

    def _recalled(self, count: int) -> "list[Recalled]":
        """That many draws of the canary that asks about a record before a long text."""
        (spec,) = load_specs(only=[RECALL], n=count, skills=None)
        result = []
        for case in cases_of(spec)[:count]:
            record, *prose, instruction, schema = case.messages[-1]["content"].split("\n")
            result.append(Recalled(case, record, "\n".join(prose), f"{instruction}\n{schema}"))
        return result

    def _prose(self, recalled: "Sequence[Recalled]", number: int, wanted: int) -> str:
        """The text of that draw and of later ones, up to that many tokens."""
        text = ""
        for each in islice(cycle(recalled), number, number + MOST_TEXTS):
            text = f"{text} {each.prose}".lstrip()
            if len(self._encoded(text)) >= wanted:
                return text
        return text

    def _rendered(
        self,
        name: str,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        thinking: bool,
        budget: int,
        case: Case | None,
    ) -> Prompt:
        text = rendered_chat(self._tokenizer, messages, tools, enable_thinking=thinking)
        return Prompt(name, tuple(messages), tuple(tools), thinking, budget, self._encoded(text), case)

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def _said(content: str) -> tuple[dict[str, Any], ...]:
    return ({"role": "user", "content": content},)


def _drawn(family: Family | None, named: str | None) -> list[list[Case]]:
    """The greedy questions of a set of canaries, by canary."""
    specs = load_specs(skills=None if family is None else family.skills, named=named)
    specs = specs if family is None else for_family(specs, family)
    return [cases for spec in specs if spec.generation.sampling is None and (cases := cases_of(spec))]


def _cases_where(piles_of: Sequence[list[Case]], wanted: Callable[[Case], bool], count: int) -> list[Case]:
    """That many distinct questions, one of each canary in turn."""
    piles = [kept for cases in piles_of if (kept := [case for case in cases if wanted(case)])]
    drawn: list[Case] = []
    for depth in range(max(map(len, piles), default=0)):
        drawn += [pile[depth] for pile in piles if depth < len(pile)]
    if len(drawn) < count:
        raise UsageError(
            "prompts-too-few",
            f"The canaries have {len(drawn)} prompts of that kind, and {count} are wanted; ask fewer.",
        )
    return drawn[:count]
