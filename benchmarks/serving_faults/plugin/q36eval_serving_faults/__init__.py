"""Faults of serving engines, made in a real vLLM 0.32: what `python -m benchmarks.serving_faults` loads there.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`). Nothing is changed until the
file that `Q36EVAL_SERVING_FAULT` names holds the name of a fault; it is looked at before every step, so that one server
shows one fault after the other. Faults of loading are made while weights are read, so they need a start of their own.
"""


def register() -> None:
    """Called by vLLM, in every process, before a model is loaded."""
    from . import answers, loading, model, states
    from .switch import path

    if path() is not None:
        for each in (loading, model, states, answers):
            each.install()
