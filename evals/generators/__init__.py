"""Seeded generators of what the evals ask and of what the sandbox is trained on.

`GENERATORS` names each; a generator draws one example and decides nothing about the split (see `q36eval.examples`).
"""

import random
from collections.abc import Callable
from functools import partial

from q36eval.evals.generators.facts import facts_binding, facts_mmlu, facts_statement
from q36eval.evals.generators.prose import SLICES, document
from q36eval.evals.generators.ruler import KINDS, ruler
from q36eval.examples import TextExample

PROSE_TOKENS = (60, 400)
"""Least and greatest length of a training document, in approximate tokens."""


def _prose(rng: random.Random, slice_name: str) -> TextExample:
    return document(rng, slice_name, rng.randint(*PROSE_TOKENS))


def _ruler(rng: random.Random, kind: str) -> TextExample:
    return ruler(rng, kinds=(kind,))


GENERATORS: dict[str, Callable[[random.Random], TextExample]] = {
    "facts_statement": facts_statement,
    "facts_mmlu": facts_mmlu,
    "facts_binding": facts_binding,
    **{f"prose_{name}": partial(_prose, slice_name=name) for name in SLICES},
    **{f"ruler_{kind}": partial(_ruler, kind=kind) for kind in KINDS},
}

__all__ = ["GENERATORS"]
