"""What can be compiled for a GPU here."""

from functools import cache
from importlib.util import find_spec


@cache
def has_triton() -> bool:
    """Whether this environment can compile kernels for its GPU."""
    return find_spec("triton") is not None
