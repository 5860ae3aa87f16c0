"""Whether the texts are enough for a policy, by what they hold: said before a model is asked for hours.

What is counted here is an upper bound of what will be: documents that are too short to be scored, prompts that are not
answered and items that error only make it fewer. So nothing is refused that could still be measured; what takes the
reference's answers to know is refused later (`q36eval.run.showable`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.config import Paths
from q36eval.errors import Q36Error, UsageError
from q36eval.gate import Criterion, Policy
from q36eval.probes import Probe
from q36eval.records import DeclaredFigure, ProbeName
from q36eval.run.declared import Declared
from q36eval.run.material import corpus_of, on_policy_prompts
from q36eval.run.measurable import too_few
from q36eval.run.reference import Reference

if TYPE_CHECKING:
    from q36eval.run.request import Request


def refuse_too_few(request: "Request", reference: Reference, paths: Paths, probes: Sequence[Probe]) -> None:
    """Hold every blocking criterion over texts against how many independent ones there are.

    `probes` are those that are known before the reference is asked anything: the KL's texts are read here. What a run
    to resume was begun with decides about it, and it is read later.

    Raises:
        UsageError: there are too few of one of them; names each and how many.
    """
    policy = request.policy
    if policy is None or request.resume is not None:
        return
    lacking = [*_of_evals(policy, request, reference, probes), *_of_corpus(policy, request, reference, paths)]
    if lacking:
        raise UsageError(
            "policy-cannot-pass",
            f"No branch can pass the policy {policy.name} over these texts, so nothing is computed. "
            f"{'; '.join(lacking)}. Take more and more even ones, or choose another policy or suite.",
        )


def _of_evals(policy: Policy, request: "Request", reference: Reference, probes: Sequence[Probe]) -> Iterator[str]:
    """Of the perplexities, whose documents say themselves what each weighs."""
    from q36eval.evals.probe import EvalsProbe

    probe = next((probe for probe in probes if isinstance(probe, EvalsProbe)), None)
    asked = [each for each in _blocking(policy, ProbeName.EVALS) if "perplexity" in each.metric]
    if probe is None or not asked or reference.tokenizer is None:
        return
    try:
        figures = probe.declared_of_texts(reference.tokenizer())
    except Exception:  # what is wrong with the data, a task or the tokenizer is said where it is planned
        return
    yield from _lacking(asked, Declared(request.family.name, request.suite, tuple(figures)))


def _of_corpus(policy: Policy, request: "Request", reference: Reference, paths: Paths) -> Iterator[str]:
    """Of the divergences: documents, and prompts that the reference is still to answer.

    A pack says itself what it holds, and one of the likeliest tokens alone is there to look for damage.
    """
    asked = _blocking(policy, ProbeName.KL)
    if not asked or ProbeName.KL not in request.probes or request.top_k is not None or reference.pack is not None:
        return
    try:
        figures = declared_of_corpus(request.suite, request.corpus, paths)
    except Q36Error:  # it is said where they are used
        return
    texts = request.suite if request.corpus is None else str(request.corpus)
    yield from _lacking(asked, Declared(request.family.name, texts, tuple(figures)))


def declared_of_corpus(suite: str, corpus: Path | None, paths: Paths) -> list[DeclaredFigure]:
    """The divergences over that corpus with no fewer clusters than there will be, whatever the reference answers.

    Raises:
        UsageError: the corpus cannot be used.
    """
    from q36eval.kl.declared import Held, declared_figures
    from q36eval.kl.spans import KINDS

    config, documents = corpus_of(suite, corpus, paths)
    prompts = [] if config.on_policy is None else on_policy_prompts(config.on_policy, paths)
    # a document and a prompt of one name are counted twice: no fewer than there are
    sources = [(each.slice, "text", each.cluster or each.id) for each in documents]
    sources += [(each.slice, "prompt", each.cluster or each.id) for each in prompts]

    def held(name: str | None) -> Held:
        chosen = [source for source in sources if name in (None, source[0])]
        return Held(documents=len(chosen), clusters=len({source[1:] for source in chosen}))

    everything = held(None)
    slices = {name: held(name) for name in sorted({source[0] for source in sources})}
    return list(declared_figures(slices, {f"kind={kind}": everything for kind in KINDS}, everything))


def _blocking(policy: Policy, probe: ProbeName) -> list[Criterion]:
    return [each for each in policy.criteria if each.tier == "blocking" and each.probe == probe]


def _lacking(asked: Sequence[Criterion], declared: Declared) -> Iterator[str]:
    """What is lacking of each; nothing of a figure that only what is planned tells of."""
    for criterion in asked:
        figure = declared.by_key.get(criterion.key)
        why = None if figure is None else too_few(criterion, figure, declared)
        if why is not None:
            demand = f"{criterion.margin.kind} {criterion.margin.value:g} on {criterion.key}"
            yield f"{criterion.id} ({demand}): {why}"
