"""Which dtypes the states of linear layers may have; apart from `delta_states`, which needs torch."""

from q36eval.errors import UsageError

STATE_DTYPES = ("float32", "bfloat16", "float16")


def check_state_dtype(dtype: str | None) -> None:
    """Refuse a dtype of states that is not emulated.

    Raises:
        UsageError: it is none of `STATE_DTYPES`.
    """
    if dtype is not None and dtype not in STATE_DTYPES:
        raise UsageError(
            "option-value", f"A state of dtype {dtype!r} is not emulated; known: {', '.join(STATE_DTYPES)}."
        )
