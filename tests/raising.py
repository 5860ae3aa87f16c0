"""Errors by their code: a sentence may be reworded, its code and the values that it names stay."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest

from q36eval.errors import Q36Error

ErrorT = TypeVar("ErrorT", bound=Q36Error)


@contextmanager
def raises(kind: type[ErrorT], code: str, *values: object) -> Iterator[pytest.ExceptionInfo[ErrorT]]:
    """The block raises an error of that class and code, whose sentence names the values."""
    with pytest.raises(kind) as error:
        yield error
    sentence = str(error.value)
    assert error.value.code == code, f"{error.value.code}: {sentence}"
    assert [value for value in values if str(value) not in sentence] == [], sentence


def failing(error: BaseException) -> Callable[..., Any]:
    """In the place of a function: every call raises that error."""
    return Mock(side_effect=error)
