"""What is secret stays out of every text that leaves the program: lines, documents, logs, identities."""

import base64
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote

SECRETS = ("Q36EVAL_WATCH_*", "*_API_KEY", "*_TOKEN", "*_SECRET", "*_PASSWORD")
"""Environment variables that hold one, or several with blanks between."""
LEAST = 8
"""Characters of a secret, or of a piece of one, that is told from any other word."""
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")


def redacted(text: str, *more: str) -> str:
    """Without secrets of the environment, the Hub's token and `more`: as they are, in hexadecimal digits, base64 or an
    address, or a piece of `LEAST` characters of their beginning or end; and without passwords of addresses.

    Digits alone are a figure, and stay.
    """
    text = _PASSWORD.sub(r"\1:***@", text)
    for secret in filter(None, (*more, *_secrets())):
        for form in _forms(secret) if len(secret) >= LEAST else {secret} & {*more}:
            text = text.replace(form, "***")
    return text


def _secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        if any(fnmatchcase(name, each) for each in SECRETS):
            yield from value.split()
    with suppress(KeyError, OSError, ValueError):  # nobody sends the file's token before that is loaded
        yield from Path(sys.modules["huggingface_hub.constants"].HF_TOKEN_PATH).read_text().split()


def _forms(secret: str) -> Iterator[str]:
    data = secret.encode(errors="surrogateescape")
    encoded = data.hex(), data.hex().upper(), base64.b64encode(data).decode().rstrip("="), quote(secret)
    pieces = () if "://" in secret else (secret[:LEAST], secret[-LEAST:])  # every address begins alike
    yield from (form for form in (secret, *encoded, *pieces) if not form.isdigit())
