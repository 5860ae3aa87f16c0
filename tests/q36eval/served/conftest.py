"""What the model behind the tests' servers answers: once for each file of tests."""

from collections.abc import Callable
from typing import Any

import pytest

from q36eval.served import prompts


@pytest.fixture(scope="module")
def known() -> dict[object, object]:
    """What it answers, computed once for all tests."""
    return {}


@pytest.fixture(scope="session", autouse=True)
def drawn_once() -> Any:
    """The canaries are loaded and drawn once: that takes four seconds, and every run here asks the same."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("load_specs", "for_family", "cases_of"):
            patch.setattr(prompts, name, once(getattr(prompts, name)))
        yield


def once(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, whose result for the same arguments is kept: these are what they print, or objects that are kept too."""
    results: dict[Any, Any] = {}

    def kept(*given: Any, **named: Any) -> Any:
        key = (*map(repr, given), repr(named))
        if key not in results:
            results[key] = call(*given, **named)
        return results[key]

    return kept
