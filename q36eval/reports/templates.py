"""The Jinja templates of reports. Every value that a template prints is escaped for its format."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from q36eval.inert_text import SENTENCE

FOLDER = Path(__file__).parent


def render(name: str, escape: Callable[..., str], folder: Path = FOLDER, /, **values: Any) -> str:
    """A template of a folder with these values.

    `escape` makes text harmless: every printed value that is not `Markup` passes it; `value|long` allows a sentence's
    length, `value|cut(N)` that of a label.
    """
    return _environment(escape, folder).get_template(name).render(**values)


@cache
def _environment(escape: Callable[..., str], folder: Path) -> Environment:
    def harmless(value: Any, **limits: int) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(str(value), **limits))

    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["long"] = lambda value: harmless(value, limit=SENTENCE)
    environment.filters["cut"] = lambda value, most: harmless(value, limit=most)
    environment.filters["each"] = lambda values: [harmless(value) for value in values]
    return environment
