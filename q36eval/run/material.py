"""What the KL probe scores, put together: the suite's corpus or a person's own, and the reference's sampled answers."""

from collections.abc import Callable
from pathlib import Path

from q36eval.config import Paths
from q36eval.engines.base import Engine
from q36eval.errors import UsageError
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.corpus_config import CorpusConfig, load_configured_corpus, load_corpus_config
from q36eval.kl.corpus_plan import plan_of
from q36eval.kl.on_policy import SAMPLED_AGAIN, OnPolicySettings, kept_or_sampled
from q36eval.kl.planning import OVERLAP, Material
from q36eval.probes import Progress
from q36eval.records import DeploymentIdentity
from q36eval.run.on_policy import on_policy_prompts
from q36eval.run.suites import suite_place

Corpus = tuple[CorpusConfig, list[CorpusDocument]]


def corpus_of(suite: str, corpus: Path | None, paths: Paths) -> Corpus:
    """The corpus of that file, or the suite's own, with how it is to be scored.

    Raises:
        UsageError: an unknown suite, data that is not what its manifest says, or a corpus file that cannot be used.
    """
    from q36eval.kl.corpus import load_corpus
    from q36eval.run.corpora import verified

    place = suite_place(suite, paths)
    if corpus is not None:
        config = load_corpus_config(corpus)
        return config, load_configured_corpus(corpus, config)
    folder = place.corpus
    if folder is None:
        raise UsageError(f"The suite {suite} brings no texts to measure the KL on; name a corpus file with --corpus.")
    name = suite.partition("=")[0]
    verified(name, folder)
    plan = plan_of(name)
    sampled = OnPolicySettings() if plan is None else plan.on_policy
    return CorpusConfig(name=folder.name, on_policy=sampled), load_corpus(folder)


def material_of(
    corpus: Corpus,
    context_limits: tuple[int, int | None],
    identity: DeploymentIdentity,
    load_reference: Callable[[], Engine],
    kept_in: Path,
    paths: Paths,
    progress: Progress,
    remedy: str = SAMPLED_AGAIN,
) -> Material:
    """Documents, answers and windows; the reference answers now if `kept_in` does not hold its answers yet.

    `context_limits` are the family's context length and what a person asked for; `remedy` is what to do about kept
    answers that cannot be used.

    Raises:
        UsageError: a context that leaves nothing to score after the overlap, or answers that cannot be used.
        EngineError: the reference could not answer.
    """
    config, documents = corpus
    context, overlap = context_and_overlap(config, *context_limits)
    settings = config.on_policy
    prompts = [] if settings is None else on_policy_prompts(settings, paths)
    if settings is None or not prompts:
        return Material(tuple(documents), (), context, overlap)
    answers = kept_or_sampled(kept_in, identity, prompts, settings, load_reference, progress, remedy).answers
    return Material(tuple(documents), answers, context, overlap)


def context_and_overlap(config: CorpusConfig, family_context: int, asked: int | None) -> tuple[int, int]:
    """The least of the contexts that are stated, and the least left context of a token in a longer document.

    Raises:
        UsageError: the overlap is no less than the context.
    """
    context = min(limit for limit in (family_context, config.context, asked) if limit is not None)
    overlap = config.overlap or max(1, min(OVERLAP, context // 4))
    if overlap >= context:
        raise UsageError(
            f"An overlap of {overlap:,} tokens leaves nothing to score in a context of {context:,}; "
            f"choose a longer context or a shorter overlap."
        )
    return context, overlap
