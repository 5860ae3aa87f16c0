"""Freeze the sandbox eval tasks and KL corpus: `python -m q36eval.app.sandbox.freeze` (needs the tokenizer in bf16)."""

import random
from pathlib import Path

from q36eval.app.sandbox.mixture import Renderer, document
from q36eval.checkpoints import tokenizer_sha256
from q36eval.config import Paths
from q36eval.evals.freeze import SEED, freeze_corpus, freeze_tasks

TOOL_DIALOGUES = 20


def tool_dialogues(count: int = TOOL_DIALOGUES) -> list[str]:
    """Held-out tool conversations as text; every fourth one has no fitting tool."""
    renderer = Renderer()
    rng = random.Random(f"{SEED}/corpus/tool_dialogue")
    texts: list[str] = []
    while len(texts) < count:
        kind = "tool_none" if len(texts) % 4 == 3 else "tool_call"
        drawn = document(kind, rng, "test", renderer)
        text = drawn.prompt + drawn.answer
        if text not in texts:
            texts.append(text)
    return texts


def main() -> None:
    """Write data/tasks/sandbox and data/corpus/sandbox with their manifests."""
    from tokenizers import Tokenizer

    paths = Paths.default()
    reference: Path = paths.data / "sandbox" / "bf16"
    tokenizer = Tokenizer.from_file(str(reference / "tokenizer.json"))
    freeze_tasks(
        paths.data / "tasks" / "sandbox",
        lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
        tokenizer_sha256(reference),
    )
    freeze_corpus(paths.data / "corpus" / "sandbox", tool_dialogues())


if __name__ == "__main__":
    main()
