"""Which GPUs quantize a checkpoint's inputs, and which serve it weight-only."""

from pathlib import Path

import pytest

from q36eval.run.arithmetic import gpu_words, input_kinds
from tests.branches import folder_of

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox"


@pytest.mark.parametrize(("folder", "kinds"), [("bf16", ()), ("main", ("nvfp4",)), ("fp8-head", ("fp8", "nvfp4"))])
def test_the_inputs_of_a_checkpoint_are_known_without_loading_it(folder: str, kinds: tuple[str, ...]) -> None:
    place = SANDBOX / folder
    assert input_kinds(place if place.is_dir() else folder_of(folder)) == kinds


def test_a_gpu_older_than_the_format_serves_it_weight_only() -> None:
    hopper, blackwell = ("H100", (9, 0)), ("B200", (10, 0))
    assert gpu_words(("nvfp4",), hopper).endswith("the H100 here (9.0) serves the branch weight-only.")
    assert gpu_words(("nvfp4",), blackwell).endswith("the B200 here (10.0) quantizes them.")
    assert gpu_words(("fp8",), hopper).endswith("the H100 here (9.0) quantizes them.")
    assert gpu_words(("nvfp4",), None).endswith("(Blackwell), and serves them weight-only on older ones.")
    assert gpu_words(("int8",), None) == gpu_words((), hopper) == "", "nothing is said of what is not known"
