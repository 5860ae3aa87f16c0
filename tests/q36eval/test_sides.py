"""Which engines answered for the two sides: what is a fair comparison, and what a report says of it."""

import pytest

from q36eval.engines.comparability import is_fair, shared_words
from q36eval.records import DeploymentIdentity


def deployment(engine: str, version: str = "1", kv_cache_dtype: str = "auto", **settings: str) -> DeploymentIdentity:
    return DeploymentIdentity(
        checkpoint_sha256="c",
        tokenizer_sha256="t",
        chat_template_sha256="h",
        engine=engine,
        engine_version=version,
        settings=settings,
        kv_cache_dtype=kv_cache_dtype,
    )


@pytest.mark.parametrize(
    ("branch", "reference", "fair"),
    [
        (deployment("in-process"), deployment("in-process", "2"), True),
        (deployment("vllm"), deployment("in-process"), True),
        (deployment("openai"), deployment("in-process"), True),
        (deployment("vllm"), deployment("vllm"), True),
        (deployment("vllm", arguments="{}", kv_cache_dtype="fp8_e4m3"), deployment("vllm"), True),
        (deployment("vllm", "2"), deployment("vllm", "1"), False),
        (deployment("in-process"), deployment("vllm"), False),
        (deployment("openai"), deployment("vllm"), False),
    ],
)
def test_only_a_reference_in_process_or_of_the_branchs_own_engine_is_fair(
    branch: DeploymentIdentity, reference: DeploymentIdentity, fair: bool
) -> None:
    assert is_fair(branch, reference) is fair


def test_what_two_sides_of_one_engine_leave_out_is_said_with_what_differs_between_them() -> None:
    plain, other = deployment("vllm", device="cpu"), deployment("vllm", "1", "fp8_e4m3", device="cpu", arguments="{}")
    assert shared_words(plain, deployment("in-process")) is None
    assert shared_words(None, plain) is None
    assert shared_words(plain, None) is None
    said = shared_words(plain, plain)
    assert said is not None
    assert said.startswith("what vllm does wrong to the reference too does not show"), "first, where lines are cut"
    assert "it answered for both (1)" in said
    assert "settings" not in said
    assert str(shared_words(other, plain)).endswith("their settings differ in arguments, kv_cache_dtype")
