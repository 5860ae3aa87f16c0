"""Keeps what lm-eval, `datasets` and NLTK write to the terminal away from it."""

import contextlib
import io
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Progress bars and notices of libraries go nowhere."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
