"""Freezes the corpus of a shipped suite: texts of the hub's datasets, and our own documents."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from q36eval.chat import TemplateLimitError, rendered_chat
from q36eval.checkpoints import load_tokenizer, tokenizer_sha256
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.evals.freezing.hub import Hub
from q36eval.evals.freezing.suite import check_replaceable, staging
from q36eval.evals.frozen import Manifest, frozen_files, read_manifest, verify, write_manifest
from q36eval.evals.suite import HubSource
from q36eval.files import canonical_json
from q36eval.kl.corpus import CorpusDocument, check_documents
from q36eval.kl.corpus_plan import CorpusPlan, generated, plan_of
from q36eval.kl.hub_datasets import HubDataset, documents_of

Notify = Callable[[str], None]


def freeze_corpus(suite: str, tokenizer: Path, target: Path, notify: Notify = lambda _: None) -> Manifest | None:
    """Write the corpus of a shipped suite into `target`; None if it has no frozen corpus.

    Deterministic for the same plan, datasets and chat template; a failed freezing leaves no files.

    Raises:
        UsageError: a dataset is unavailable, the checkpoint has no chat template, or `target` holds anything but an
            older freezing.
    """
    plan = plan_of(suite)
    if plan is None:
        return None
    check_replaceable(target, plan.name)
    hub = Hub({each.name: HubSource(revision=each.revision, licence=each.licence) for each in plan.datasets})
    documents = [*_generated(plan, tokenizer)]  # first, since a checkpoint without a template is reported immediately
    for dataset in plan.datasets:
        documents += _of_dataset(dataset, hub)
        notify(f"{dataset.slice}: {dataset.called} {dataset.split}")
    check_documents(documents, f"the plan of {plan.name}")
    with staging(target) as folder:
        for name in plan.slices:
            chosen = [document for document in documents if document.slice == name]
            (folder / f"{name}.jsonl").write_text("".join(map(_line, chosen)), encoding="utf-8")
        made_from = {
            "plan_sha256": plan.sha256,
            "tokenizer_sha256": tokenizer_sha256(tokenizer),
            "datasets": version("datasets"),
        }
        manifest = Manifest(
            name=plan.name, seed=plan.seed, made_from=made_from, sources=hub.sources, files=frozen_files(folder)
        )
        write_manifest(folder, manifest)
    notify(", ".join(f"{name}: {count}" for name, count in counts(documents).items()))
    return verify(target)


def verified(suite: str, folder: Path) -> Manifest:
    """The manifest of a suite's frozen corpus, with its files hashed.

    Raises:
        UsageError: it is not frozen yet, was frozen from another plan, or does not match its manifest.
    """
    plan = plan_of(suite)
    freeze = f"q36eval data freeze {suite} --tokenizer FOLDER"
    if not folder.is_dir():
        raise UsageError(
            "frozen-data-missing",
            f"The suite {suite} has no frozen texts in {folder}; where there is a network or a filled cache run: "
            f"{freeze}; or name a corpus file with --corpus.",
        )
    if plan is not None and read_manifest(folder).made_from.get("plan_sha256") != plan.sha256:
        raise UsageError(
            "frozen-data-outdated", f"{folder} was not frozen from the plan of {plan.name} as it is now; run: {freeze}."
        )
    return verify(folder)


def counts(documents: Sequence[CorpusDocument]) -> dict[str, int]:
    """Documents, clusters and characters in all, then the documents of each slice."""
    counts = {
        "documents": len(documents),
        "clusters": len({document.cluster or document.id for document in documents}),
        "characters": sum(len(document.text) for document in documents),
    }
    return counts | dict(sorted(Counter(document.slice for document in documents).items()))


def _of_dataset(dataset: HubDataset, hub: Hub) -> list[CorpusDocument]:
    rows = hub.read(dataset.name, dataset.config, dataset.split).rows
    columns: Mapping[str, list[Any]] = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    return documents_of(dataset, columns)


def _generated(plan: CorpusPlan, tokenizer: Path) -> Iterator[CorpusDocument]:
    for number, row in enumerate(generated("json", plan.generated.json_documents)):
        yield CorpusDocument(id=f"json-{number:03d}", slice="json", text=row["text"])
    if not plan.generated.tool_dialogue:
        return
    written = _template_of(tokenizer)
    for number, row in enumerate(generated("tool_dialogue", plan.generated.tool_dialogue)):
        yield CorpusDocument(
            id=f"tool_dialogue-{number:03d}",
            slice="tool_dialogue",
            text=written(row["messages"], row["tools"]),
            cluster=f"tool_dialogue/{row['template']}",
        )


def _template_of(folder: Path) -> Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]:
    """A function that renders a whole conversation by that checkpoint's chat template."""
    try:
        tokenizer = load_tokenizer(folder)
    except CorruptCheckpointError as error:
        raise UsageError("tokenizer-unreadable", f"The tokenizer in {folder} cannot be loaded: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            "chat-template-missing",
            f"The checkpoint {folder} has no chat template, with which tool dialogues are written.",
        )

    def written(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        try:
            return rendered_chat(tokenizer, messages, tools, enable_thinking=False, add_generation_prompt=False)
        except TemplateLimitError as error:
            raise UsageError(error.code, f"Tool dialogues cannot be written: {error}") from error

    return written


def _line(document: CorpusDocument) -> str:
    body = {"id": document.id, "slice": document.slice, "text": document.text}
    body |= {} if document.cluster is None else {"cluster": document.cluster}
    return canonical_json(body, ascii_only=False) + "\n"
