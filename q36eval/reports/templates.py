"""The Jinja templates of reports. Every value that a template prints is escaped for its format."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from q36eval.inert_text import SENTENCE


def render(name: str, escape: Callable[..., str], /, **values: Any) -> str:
    """A template of this folder with these values.

    `escape` makes text harmless: every printed value that is not `Markup` passes it; `value|long` allows a sentence's
    length.
    """
    return _environment(escape).get_template(name).render(**values)


@cache
def _environment(escape: Callable[..., str]) -> Environment:
    def harmless(value: Any, **limits: int) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(str(value), **limits))

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["long"] = lambda value: harmless(value, limit=SENTENCE)
    environment.filters["each"] = lambda values: [harmless(value) for value in values]
    return environment
