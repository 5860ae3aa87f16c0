"""The answers that best show why a verdict is not PASS: for people, who trust an answer more than a figure."""

from dataclasses import dataclass

MOST = 3
ANSWERS_TITLE = "What the reference answers right and the branch wrong"
PROMPT_CHARACTERS, ANSWER_CHARACTERS = 600, 1200


@dataclass(frozen=True)
class DecidingAnswer:
    """One question that the reference answers right and the branch wrong.

    `name` says which, `why` what is wrong with the branch's answer, `parting` where the two part and what each model
    said there; empty where that is not known. Texts are as the models wrote them, cut at a readable length.
    """

    name: str
    prompt: str
    reference: str
    branch: str
    why: str = ""
    parting: str = ""
    required: bool = False


def cut(text: str, most: int, *, end: bool = False) -> str:
    """A text's beginning (or its end, where what is asked stands last) with a mark where something was left out."""
    if len(text) <= most:
        return text
    return f"…{text[-most:]}" if end else f"{text[:most]}…"
