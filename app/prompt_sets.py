"""Writes the prompts that a reference answers for the release suites: `python -m q36eval.app.prompt_sets`.

`data/prompts/release.jsonl` is drawn from templates of our own (`kl.generators.conversations`); `chat.jsonl`, the short
list that the sandbox answers, is kept as it is.
"""

import json

from q36eval.config import Paths
from q36eval.evals.frozen import Manifest, write_frozen
from q36eval.kl.generators.conversations import SEED, prompts


def write_prompts(paths: Paths) -> Manifest:
    """Both lists and their manifest; the same templates and seed give the same bytes."""
    folder = paths.data / "prompts"
    chat = [json.loads(line) for line in (folder / "chat.jsonl").read_text(encoding="utf-8").splitlines()]
    files = {"chat.jsonl": chat, "release.jsonl": list(prompts())}
    made_from = {"source": "written for this repository; release.jsonl is drawn from kl/generators/conversations.yaml"}
    return write_frozen(folder, "chat prompts", SEED, files, made_from)


if __name__ == "__main__":
    write_prompts(Paths.default())
