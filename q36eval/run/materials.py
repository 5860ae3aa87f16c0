"""The texts that the KL probe scores: the suite's or a custom corpus, and the reference's sampled answers."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from q36eval.canaries.cases import cases_of
from q36eval.canaries.specification import CanarySpec, load_specs
from q36eval.config import Paths
from q36eval.engines.base import Engine
from q36eval.errors import UsageError
from q36eval.evals.frozen import verify
from q36eval.files import read_listed
from q36eval.kl.corpus import CorpusDocument, in_turn, load_corpus
from q36eval.kl.corpus_config import CorpusConfig, load_configured_corpus, load_corpus_config
from q36eval.kl.corpus_plan import settings_of
from q36eval.kl.on_policy import OnPolicyPrompt, OnPolicySettings, kept_or_sampled
from q36eval.kl.planning import ANSWERS_PREFIX, OVERLAP, Material
from q36eval.probes import Progress
from q36eval.records import DeploymentIdentity
from q36eval.run.corpora import verified
from q36eval.run.suites import suite_place, texts_of

Corpus = tuple[CorpusConfig, list[CorpusDocument]]


def corpus_of(suite: str, corpus: Path | None, paths: Paths) -> Corpus:
    """The corpus of that file, or the suite's own, with its scoring settings.

    Raises:
        UsageError: an unknown suite, data that does not match its manifest, or an unusable corpus file.
    """
    place = suite_place(suite, paths)
    if corpus is not None:
        config = load_corpus_config(corpus)
        return config, load_configured_corpus(corpus, config)
    folder = place.corpus
    if folder is None:
        raise UsageError(
            "corpus-missing",
            f"The suite {suite} brings no texts to measure the KL on; name a corpus file with --corpus.",
        )
    name = texts_of(suite)
    listed = {relative: entry.sha256 for relative, entry in verified(name, folder).files.items()}
    plan = settings_of(name)
    config = CorpusConfig(name=folder.name)
    if plan is not None:
        config = config.model_copy(update={"on_policy": plan.on_policy, "most_loss": plan.most_loss})
    return config, load_corpus(folder, listed)


def material_of(
    corpus: Corpus,
    family_context: int,
    identity: DeploymentIdentity,
    load_reference: Callable[[], Engine],
    kept_in: Path,
    paths: Paths,
    progress: Progress,
) -> Material:
    """Documents, answers and windows; the reference answers now if `kept_in` does not hold its answers yet.

    Raises:
        UsageError: the context leaves nothing to score after the overlap, or the answers are unusable.
        EngineError: the reference could not answer.
    """
    config, documents = corpus
    context, overlap = context_and_overlap(config, family_context)
    settings = config.on_policy
    prompts = [] if settings is None else on_policy_prompts(settings, paths)
    if settings is None or not prompts:
        return Material(tuple(documents), (), context, overlap, (), config.most_loss)
    texts = [] if config.most_loss is None else [one.text for one in in_turn(documents, lambda one: one.slice)]
    kept = kept_or_sampled(kept_in, identity, prompts, settings, load_reference, progress, texts)
    return Material(tuple(documents), kept.answers, context, overlap, kept.prefix, config.most_loss)


def context_and_overlap(config: CorpusConfig, family_context: int) -> tuple[int, int]:
    """The smaller of the family's context and the corpus file's, and the minimum left context in a longer document.

    Raises:
        UsageError: the overlap is not smaller than the context.
    """
    context = min(family_context, config.context or family_context)
    overlap = config.overlap or max(1, min(OVERLAP, context // 4))
    if overlap >= context:
        raise UsageError(
            "overlap-too-long",
            f"An overlap of {overlap:,} tokens leaves nothing to score in a context of {context:,}; "
            f"choose a longer context or a shorter overlap.",
        )
    return context, overlap


CANARIES_SLICE = "on_policy/canaries"


ANSWERED = (
    "copy-exact-must-pass",
    "copy-exact",
    "discount-compare-must-pass",
    "discount-compare",
    "discount-thinking-must-pass",
    "discount-three-shops-must-pass",
    "discount-three-shops",
    "discount-threshold-must-pass",
    "discount-threshold",
    "discount-two-step-must-pass",
    "discount-two-step",
    "enum-order-must-pass",
    "enum-order",
    "enum-select-must-pass",
    "enum-select",
    "json-flat-must-pass",
    "json-flat",
    "json-nested-must-pass",
    "json-nested",
    "tool-call-must-pass",
    "tool-call",
    "tool-none-must-pass",
    "tool-none",
)
"""The canaries whose first questions are answered: listed by name, so that adding a canary changes no divergence."""


@cache
def answered_canaries() -> tuple[CanarySpec, ...]:
    """Those canaries from the shipped ones, read once."""
    return tuple(load_specs(only=ANSWERED, skills=None))


def on_policy_prompts(settings: OnPolicySettings, paths: Paths) -> list[OnPolicyPrompt]:
    """The first questions of the canaries named above, and the chat prompts, as the settings request.

    Raises:
        UsageError: the chat prompts do not match their manifest.
    """
    canaries = _canary_prompts(answered_canaries(), settings.per_canary)
    return canaries + (_own_prompts(paths, settings.prompts or "chat") if settings.chat else [])


def _canary_prompts(specs: Sequence[CanarySpec], count: int) -> list[OnPolicyPrompt]:
    prompts = []
    for spec in specs if count else ():
        # a family of `count` draws begins like a longer one, and is generated faster
        family = None if spec.family is None else spec.family.model_copy(update={"n": count})
        for case in cases_of(spec.model_copy(update={"family": family}))[:count]:
            prompts.append(
                OnPolicyPrompt(
                    id=f"canaries/{case.name}",
                    slice=CANARIES_SLICE,
                    messages=case.messages,
                    tools=case.tools,
                    enable_thinking=case.generation.enable_thinking,
                    max_new_tokens=case.generation.max_new_tokens,
                )
            )
    return prompts


def _own_prompts(paths: Paths, name: str) -> list[OnPolicyPrompt]:
    """A list of our own prompts; those without a kind are chat."""
    folder = paths.data / "prompts"
    listed = verify(folder).files.get(f"{name}.jsonl")
    if listed is None:
        raise UsageError(
            "prompts-unknown", f"There is no list of prompts {name!r} in {folder}; name another in on_policy.prompts."
        )
    text = read_listed(folder / f"{name}.jsonl", listed.sha256).decode("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [
        OnPolicyPrompt(
            id=f"{line.get('kind', 'chat')}/{line['id']}",
            slice=f"{ANSWERS_PREFIX}{line.get('kind', 'chat')}",
            messages=tuple(line["messages"]),
            tools=tuple(line.get("tools", ())),
            enable_thinking=line.get("enable_thinking", False),
            max_new_tokens=line["max_new_tokens"],
            cluster=line.get("cluster"),
        )
        for line in lines
    ]
