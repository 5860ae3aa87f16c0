"""Damage that no file can show is measured: `UNSEEN` of the inspection tests says which."""

from pathlib import Path
from typing import Any

import pytest

from q36eval.engines import open_engine
from q36eval.kl.attribution import divergences, hidden_states, sample
from q36eval.kl.corpus import load_corpus
from tests.app.sandbox_gates import copied
from tests.branches import folder_of
from tests.kl.comparing import CORPUS
from tests.q36eval.checkpoints.inspection.damage import clipping_cache, inputs_twenty_times


@pytest.mark.long
def test_scales_of_inputs_and_of_the_cache_that_no_file_contradicts_show_in_the_kl(bf16: Any, tmp_path: Path) -> None:
    chosen = sample(load_corpus(CORPUS)[::7], bf16.tokenizer, 1, 100_000)
    states, head = hidden_states(bf16, chosen.requests), bf16.output_head()

    def kl(folder: Path) -> float:
        return sum(divergences(open_engine(folder), chosen, states, head)) / sum(chosen.units)

    undamaged = kl(folder_of("main"))
    for damage in (inputs_twenty_times, clipping_cache):
        assert kl(copied(folder_of("main"), tmp_path / damage.__name__, damage)) > 5 * undamaged
