"""States of the linear layers pass other dtypes between chunks and steps; FP16 overflows as where it is served."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from q36eval.checkpoints import load_model
from q36eval.checkpoints.delta_states import CHUNK, RoundedStates
from q36eval.engines import EngineSettings, identity_of, open_engine
from q36eval.engines.base import GenerationRequest, ScoreRequest
from q36eval.errors import UsageError
from tests.raising import raises

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox" / "bf16"


def states_of(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Recurrent and convolution state of the first layer after one prefill."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    return cache.layers[0].recurrent_states[0], cache.layers[0].conv_states[0]


def rounded(**dtypes: str) -> Any:
    return load_model(SANDBOX, dtype=torch.float32, **dtypes).model  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("length", [1, CHUNK, CHUNK + 1, 3 * CHUNK + 1, 3 * CHUNK + 17])
def test_in_float32_nothing_changes(length: int) -> None:
    ids = (torch.arange(2 * length) % 700).reshape(2, length)
    plain, chunked = load_model(SANDBOX, dtype=torch.float32).model, rounded(recurrent_state_dtype="float32")
    assert any(isinstance(module, RoundedStates) for module in chunked.modules())
    with torch.no_grad():
        wanted, found = (model(input_ids=ids, use_cache=False).logits for model in (plain, chunked))
    assert float((wanted - found).abs().max()) < 1e-3  # sums of other lengths
    for one, other in zip(states_of(plain, ids), states_of(chunked, ids), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_kept_is_a_number_of_that_dtype_in_prefill_and_in_every_step(dtype: str) -> None:
    from transformers import DynamicCache

    ids = (torch.arange(70) * 7 % 700).reshape(1, -1)
    model = rounded(recurrent_state_dtype=dtype, conv_state_dtype=dtype)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        for part in (ids[:, :67], ids[:, 67:68], ids[:, 68:69]):
            model(input_ids=part, past_key_values=cache, use_cache=True)
            for state in (cache.layers[0].recurrent_states[0], cache.layers[0].conv_states[0]):
                assert torch.equal(state, state.to(getattr(torch, dtype)).float())
                assert bool(state.any())
        plain = load_model(SANDBOX, dtype=torch.float32).model
        ids = ids.repeat(1, 8)
        away = (plain(input_ids=ids).logits - model(input_ids=ids).logits).abs().amax(-1)[0]
    # before the first rounding nothing differs but the length of sums
    assert float(away[:CHUNK].max()) < 1e-3 < float(away[CHUNK:].max())


@pytest.mark.long
def test_a_shared_prefix_is_lent_and_stays_as_it_is() -> None:
    """Rows that are scored after a prefix must not write to what the next batch starts from."""
    engine = open_engine(EngineSettings(SANDBOX, recurrent_state_dtype="bfloat16"))
    prefix = tuple(range(5, 5 + 100))
    ends = [tuple(range(200 + 3 * n, 200 + 3 * n + 90)) for n in range(4)]
    requests = [ScoreRequest(str(n), prefix + end, len(prefix), "x", len(prefix)) for n, end in enumerate(ends)]
    first, again = ({s.request.key: s.hidden_states for s in engine.score(requests)} for _ in range(2))
    for key, states in first.items():
        assert states is not None
        assert torch.equal(states, again[key])
    answers = list(engine.generate([GenerationRequest("g", prefix, 5)]))
    assert answers[0].error is None


def test_the_identity_says_so_and_other_dtypes_are_refused() -> None:
    plain = identity_of(SANDBOX)
    settings = EngineSettings(SANDBOX, recurrent_state_dtype="bfloat16", conv_state_dtype="float16")
    emulated = identity_of(settings)
    added = {("recurrent_state_dtype", "bfloat16"), ("conv_state_dtype", "float16")}
    assert set(emulated.settings.items()) - set(plain.settings.items()) == added
    with raises(UsageError, "option-value", "'fp8'", "float32, bfloat16, float16"):
        identity_of(EngineSettings(SANDBOX, recurrent_state_dtype="fp8"))
