"""Whether a server answers a question alone as it does among others: same weights, same prompt, another batch."""

from dataclasses import dataclass

from q36eval.engines.base import Engine, GenerationRequest
from q36eval.engines.openai.capabilities import PROOF_TEXTS

TOKENS = 16


@dataclass(frozen=True)
class Scatter:
    """Of `compared` greedy answers, so many at once, how many differ from what the same question is answered alone."""

    at_once: int
    compared: int
    differing: int

    def __str__(self) -> str:
        if not self.compared:
            return "The server did not answer the questions by which its scatter is seen."
        if not self.differing:
            return f"Of {self.compared} greedy answers, {self.at_once} at once, the server gives all alone too."
        return (
            f"Of {self.compared} greedy answers, {self.at_once} at once, the server gives {self.differing} otherwise "
            f"than alone: answers that part at near ties say nothing of the branch."
        )


def scatter_of(engine: Engine, at_once: int) -> Scatter:
    """Ask a few questions one by one, and then `at_once` at a time."""
    questions = [tuple(engine.tokenizer.encode(text, add_special_tokens=False)) for text in PROOF_TEXTS]
    copies = max(1, -(-at_once // len(questions)))
    alone = [GenerationRequest(f"alone {n}", ids, TOKENS, group=f"alone {n}") for n, ids in enumerate(questions)]
    among = [
        GenerationRequest(f"{copy} {n}", ids, TOKENS, group="among")
        for copy in range(copies)
        for n, ids in enumerate(questions)
    ]
    answers = {each.request.key: each for each in engine.generate([*alone, *among]) if each.error is None}
    pairs = [
        (answers[f"alone {n}"].text, answers[f"{copy} {n}"].text)
        for copy in range(copies)
        for n in range(len(questions))
        if f"alone {n}" in answers and f"{copy} {n}" in answers
    ]
    return Scatter(at_once, len(pairs), sum(one != other for one, other in pairs))
