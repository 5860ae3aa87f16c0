"""A server looked at before any gate: what it is, what it can do, and what could be measured through it."""

from dataclasses import asdict
from typing import Any

from q36eval.engines.base import EngineOptions, EngineSettings
from q36eval.engines.openai.chat_abilities import chat_abilities
from q36eval.engines.openai.client import Address, Client, Limits
from q36eval.engines.openai.deployment import CONCURRENCY, Opened, identity_at, opened
from q36eval.engines.openai.engine import OpenAIEngine
from q36eval.engines.openai.flavour import Server, server_of
from q36eval.engines.openai.scatter import scatter_of

QUICKLY = Limits(connect=5.0, silence=60.0, attempts=2, first_pause=0.2, give_up=60.0)
"""Somebody waits for the answer."""

MEASURABLE = {
    "all": {
        "kl": "exact, over the whole vocabulary",
        "evals": "all of them",
        "canaries": "answers and margins",
    },
    "top": {
        "kl": "not: it needs the whole vocabulary; start vLLM with --max-logprobs -1",
        "evals": "what is generated, and choices that are among the {top_k} likeliest tokens",
        "canaries": "answers, without margins",
    },
    "nothing": {
        "kl": "not: the server gives no log-probabilities of a prompt's tokens",
        "evals": "what is generated alone",
        "canaries": "answers, without margins",
    },
}
"""What a gate gets of each probe, by what the server gives of a prompt's tokens."""


def examined(options: EngineOptions, settings: EngineSettings | None) -> dict[str, Any]:
    """What a server is and can do, as JSON; its address and key are not in it.

    Without `settings`, which name the branch that it serves, only what needs no tokenizer is tried.

    Raises:
        UsageError: no address, no such model, or a tokenizer that is not the branch's.
        EngineError: it does not answer.
    """
    if settings is None:
        client = Client(Address.named(options.base_url), QUICKLY)
        try:
            server = server_of(client, options.served_model)
            return _itself(server) | {"chat": asdict(chat_abilities(client, server)), "branch": None}
        finally:
            client.close()
    there = opened(settings, QUICKLY)
    try:
        return _itself(there.server) | _with_branch(there, settings)
    finally:
        there.client.close()


def _itself(server: Server) -> dict[str, Any]:
    return {
        "flavour": server.flavour,
        "version": server.version,
        "model": server.model.id,
        "context": server.model.max_model_len,
        "tells_its_start": server.started is not None,
    }


def _with_branch(there: Opened, settings: EngineSettings) -> dict[str, Any]:
    can, at_once = there.can, settings.batch_rows or CONCURRENCY
    scatter = scatter_of(OpenAIEngine(there, settings), at_once)
    measurable = {probe: words.format(top_k=can.top_k) for probe, words in MEASURABLE[can.scores].items()}
    return {
        "chat": asdict(chat_abilities(there.client, there.server)),
        "branch": {
            "prompts": identity_at(there, settings).settings["prompts"],
            "returns_token_ids": can.returns_ids,
            "counts_tokens": can.counts,
            "tokenizer": can.tokenizer,
            "prompt_log_probabilities": {"all": there.vocabulary, "top": can.top_k, "nothing": 0}[can.scores],
            "vocabulary": there.vocabulary,
            "scatter": {"at_once": at_once, "compared": scatter.compared, "differing": scatter.differing},
            "measurable": measurable,
        },
    }
