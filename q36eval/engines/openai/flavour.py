"""The serving program, its version, and whether it is still the same process."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from q36eval.engines.openai.answers import Model, Models, read_as
from q36eval.engines.openai.client import Client, MalformedError, NoAnswerError, RefusedError
from q36eval.errors import EngineError, UsageError

VLLM, SGLANG, LLAMA_CPP, UNKNOWN = "vllm", "sglang", "llama.cpp", "unknown"
OWNERS = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMA_CPP}
"""Programs by the `owned_by` of their models."""
STARTED = "process_start_time_seconds "
"""The line of Prometheus' page with the start time of the server's process."""


@dataclass(frozen=True)
class Server:
    """A server's description of itself. Two that differ are different servers, or different starts of one."""

    flavour: str
    version: str
    model: Model
    started: str | None
    """The start time of its process, if reported."""

    def fits(self, tokens: int) -> bool:
        """Whether that many tokens fit its context, as far as reported."""
        return self.model.max_model_len is None or tokens <= self.model.max_model_len


def server_of(client: Client, served_model: str | None) -> Server:
    """The server behind a client, and the model of that name; the only one if none is named.

    Raises:
        UsageError: the model does not exist, or several do and none is named.
        EngineError: it does not answer.
    """
    base, root = client.address.base, client.address.root
    try:
        models = client.get(f"{base}/models", lambda content: read_as(Models, content)).data
    except RefusedError as error:
        raise UsageError(
            "server-lists-no-models",
            f"The server {base} lists no models ({error}); is that address the one of its API?",
        ) from error
    except NoAnswerError as error:
        raise EngineError("server-silent", f"The server {base} does not answer: {error}.") from error
    names = [model.id for model in models]
    if served_model is None and len(names) != 1:
        raise UsageError(
            "served-model-ambiguous",
            f"The server {base} has {len(names)} models ({', '.join(names)}); name one with "
            "--engine-arg served_model=NAME.",
        )
    wanted = names[0] if served_model is None else served_model
    model = next((each for each in models if each.id == wanted), None)
    if model is None:
        raise UsageError(
            "served-model-unknown", f"The server {base} has no model {wanted!r}; it has {', '.join(names) or 'none'}."
        )
    flavour = OWNERS.get(model.owned_by or "", UNKNOWN)
    version = _version(client, root, flavour)
    started = next((line for line in client.lines(f"{root}/metrics") if line.startswith(STARTED)), None)
    return Server(flavour, version, model, None if started is None else started.removeprefix(STARTED))


_VERSION_PAGES = {
    VLLM: (("version",), "version"),
    SGLANG: (("server_info", "get_server_info"), "version"),
    LLAMA_CPP: (("props",), "build_info"),
}
"""The pages that may report it, the newest name first, and their keys."""


def _version(client: Client, root: str, flavour: str) -> str:
    """The program's version; `unknown` if not reported."""
    if flavour not in _VERSION_PAGES:
        return UNKNOWN
    pages, name = _VERSION_PAGES[flavour]

    def read(content: Any) -> str:
        if not isinstance(content, dict) or not isinstance(content.get(name), str):
            raise MalformedError(f"the page has no {name}")
        return str(content[name])

    for page in pages:
        with suppress(RefusedError, NoAnswerError):
            return client.get(f"{root}/{page}", read)
    return UNKNOWN
