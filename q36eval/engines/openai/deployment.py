"""One opened server, its branch, and the inputs of that deployment's identity."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, load_tokenizer, tokenizer_sha256
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.engines.base import EngineSettings
from q36eval.engines.openai.capabilities import Capabilities, tried
from q36eval.engines.openai.client import Address, Client, Limits, Meter, NoAnswerError
from q36eval.engines.openai.flavour import Server, server_of
from q36eval.errors import CorruptCheckpointError, EngineError, UsageError
from q36eval.records import DeploymentIdentity
from q36eval.redaction import redacted

OPENAI = "openai"
CONCURRENCY = 16
"""Concurrent requests if the option batch_size is not set."""
REQUESTS_VERSION = 3
"""Raised with every change of requests that may change a number."""


@dataclass(frozen=True)
class Opened:
    """One opened server, and the branch it serves."""

    client: Client
    server: Server
    can: Capabilities
    tokenizer: Any
    vocabulary: int


def opened(settings: EngineSettings, limits: Limits, *, meter: Meter | None = None, briefly: bool = False) -> Opened:
    """Identify the server, test its abilities, and prove its tokenizer equal.

    `briefly` does fewer tests, in about ten requests, for low-volume callers (`capabilities.tried`). Exceptions of
    `meter` are raised.

    Raises:
        UsageError: no address, no such model, or a tokenizer that is not the branch's.
        CorruptCheckpointError: the branch does not define its vocabulary.
        EngineError: it does not answer.
    """
    client = Client(Address.named(settings.base_url), limits, meter=meter)
    try:
        tokenizer = load_tokenizer(settings.folder)
        server = server_of(client, settings.served_model)
        client.vocabulary = vocabulary = _vocabulary(settings)
        can = tried(client, server, tokenizer, vocabulary, briefly=briefly)
        return Opened(client, server, can, tokenizer, vocabulary)
    except NoAnswerError as error:
        client.close()
        raise EngineError("server-silent", f"The server {client.address.base} does not answer: {error}.") from error
    except BaseException:
        client.close()
        raise


def _vocabulary(settings: EngineSettings) -> int:
    config = hold(settings.folder).json("config.json")
    sizes = config.get("text_config") or config
    try:
        return int(sizes["vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            "config-incomplete", f"{settings.folder / 'config.json'} does not say vocab_size."
        ) from error


def identity_at(there: Opened, settings: EngineSettings) -> DeploymentIdentity:
    """The identity of that branch on that server; it never contains the address."""
    server, can = there.server, there.can
    context, root = server.model.max_model_len, server.model.root
    told = {"context": context, "root": None if root is None else PurePath(root).name, "fingerprint": can.fingerprint}
    return DeploymentIdentity(
        checkpoint_sha256=checkpoint_sha256(settings.folder),
        tokenizer_sha256=tokenizer_sha256(settings.folder),
        chat_template_sha256=chat_template_sha256(settings.folder),
        engine=OPENAI,
        engine_version=f"{server.flavour} {server.version}",
        settings={
            "served_model": redacted(server.model.id),
            **{name: str(value) for name, value in told.items() if value is not None},
            "log_probabilities": can.scores if can.top_k is None else f"{can.scores} {can.top_k}",
            "prompts": ("token ids" if can.takes_ids else "text") + (", in lists" if can.takes_lists else ""),
            "concurrency": str(settings.batch_rows or CONCURRENCY),
            "requests": str(REQUESTS_VERSION),
        },
        kv_cache_dtype="as served",
    )


def confirm(client: Client, then: Server) -> None:
    """Check that the server is still the one that was opened.

    Raises:
        EngineError: it has another model or version, or was restarted; or it does not answer.
    """
    address = client.address.base
    try:
        now = server_of(client, then.model.id)
    except UsageError as error:
        raise EngineError("server-changed", f"The server is not what it was. {error}") from error
    except NoAnswerError as error:
        raise EngineError("server-silent", f"The server {address} does not answer: {error}.") from error
    pairs = [
        ("its program is", then.flavour, now.flavour),
        ("its version is", then.version, now.version),
        ("its process began at", then.started, now.started),
        ("its model is", then.model.model_dump(), now.model.model_dump()),
    ]
    changes = "; ".join(f"{what} {new}, and was {old}" for what, old, new in pairs if old != new)
    if changes:
        raise EngineError(
            "server-changed",
            f"The server {address} is not what it was: {changes}. Nothing is measured on a mixture; start a new run.",
        )
