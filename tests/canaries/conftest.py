"""The sandbox's tokenizer, which the tests of the probe and of margins share."""

from typing import Any

import pytest

from tests.canaries.runs import BF16


@pytest.fixture(scope="package")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(BF16)
