"""A GGUF looked at: opened though it may be damaged, its tokenizer against the reference's, and what is not judged.

llama.cpp's converter makes the tokens, their kinds and the merges out of the reference's tokenizer
(`conversion/base.py`, `get_vocab_base`); the same is done here and compared. The rule that splits text into words is
llama.cpp's own, by the name in `tokenizer.ggml.pre`: the name is all that can be compared.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import zip_longest
from typing import Any, TypeGuard

from q36eval.checkpoints.formats.gguf import check_installed
from q36eval.checkpoints.gguf.checkpoint import open_gguf
from q36eval.checkpoints.gguf.files import HeldGguf
from q36eval.checkpoints.gguf.names import HYBRIDS
from q36eval.checkpoints.gguf.settings import unread
from q36eval.checkpoints.gguf.types import FLOATS
from q36eval.checkpoints.inspection.damaged_folder import integrity
from q36eval.checkpoints.inspection.findings import Finding, Section, Severity, finding
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.tokenizer import tokenizer_rules
from q36eval.errors import CorruptCheckpointError, UsageError

SHOWN = 3
MODEL, PRE = "gpt2", "qwen35"
"""What the converter writes for Qwen3.5: BPE over bytes, and the rule that splits text. Other families have one of
several rules, which are not told apart here."""
PIECES, WITH_PIECES = "llama", ("llama", "gemma3")
"""SentencePiece, which has no merges, and the architectures that may have it. The converter reads the kinds of tokens
from tokenizer.model then, and they are not compared."""
NORMAL, CONTROL, OWN, UNUSED = 1, 3, 4, 5
_KINDS = {NORMAL: "a word", CONTROL: "a control token", OWN: "a token of its own", UNUSED: "unused"}
_SERVED = {"expert_weights_scale": (0.0, 1.0), "expert_gating_func": (0, 1), "rope.scaling.attn_factor": (1.0,)}
"""Entries that change what llama.cpp computes for this architecture, and the values that change nothing."""
_OF_WORDS = "tokenizer.ggml."
_IDS = {f"{kind}_token_id" for kind in ("bos", "eos", "eot", "eom", "padding")}
_ADDED = {"bos": "before", "eos": "after", "sep": "after"}
_COMPARED = {"model", "pre", "tokens", "merges", "token_type", *_IDS, *(f"add_{kind}_token" for kind in _ADDED)}


_finding = partial(finding, Section.CONFIGURATION)


def open_damaged_gguf(held: HeldGguf) -> tuple[Checkpoint, list[Finding], bool]:
    """As `open_damaged`: the checkpoint as far as it can be read, what is wrong with it, and whether it is whole.

    Raises:
        UsageError: another architecture, a type that is not decoded, or what decodes it is not installed.
        EngineError: the system cannot read a file.
    """
    try:
        opened = open_gguf(held)
    except CorruptCheckpointError as error:
        subject = held.weight_files[0] if held.weight_files else held.path.name
        broken = integrity("unreadable-file", subject, str(error))
        return Checkpoint(held, {}, {}), [broken], False
    check_installed({entry.dtype for entry in opened.tensors.values()})
    findings = [finding(Section.INTEGRITY, "unexpected-tensor", name, what) for name, what in opened.faults]
    return Checkpoint(held, opened.config, opened.tensors, opened.schemes), findings, True


def gguf_findings(checkpoint: Checkpoint, held: HeldGguf) -> Iterator[Finding]:
    """What engines make of its entries, and which arithmetic is judged."""
    of_words = {key: value for key, value in held.metadata.items() if key.startswith(_OF_WORDS)}
    of_words = {key: value for key, value in of_words.items() if key.removeprefix(_OF_WORDS) not in _COMPARED}
    for key, value in (unread(held.metadata) | of_words).items():
        harmless = _SERVED.get(key)
        if harmless is not None and value not in harmless:
            message = f"{key} is {str(value)[:40]}: llama.cpp honours it, and this gate measures without it."
            yield _finding("engines-read-otherwise", key, message)
        elif harmless is None:
            message = f"the entry {key} ({str(value)[:40]}) is compared with nothing."
            yield _finding("entry-not-compared", key, message, Severity.ADVISORY)
    blocks = sorted({entry.dtype for entry in checkpoint.tensors.values()} - {*FLOATS})
    if blocks:
        message = (
            f"the weights ({', '.join(blocks)}) are judged by themselves: llama.cpp multiplies them with activations "
            f"that it rounds to 8 bits on CPUs and on most GPUs, which is not emulated."
        )
        yield finding(Section.SERVABILITY, "activations-not-emulated", held.path.name, message, Severity.ADVISORY)
    for name in held.vision_files:
        message = f"{name} holds a vision tower, which is not judged."
        yield finding(Section.COVERAGE, "vision-tower-not-judged", name, message, Severity.ADVISORY)


def words_findings(held: HeldGguf, reference: HeldFolder | None, vocab_size: int | None) -> Iterator[Finding]:
    """The tokenizer that llama.cpp will use, against the reference's."""
    try:
        metadata = held.metadata
    except CorruptCheckpointError:  # reported where it was opened
        return
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    kind = metadata.get("general.architecture")
    has_pieces = metadata.get("tokenizer.ggml.model") == PIECES and kind in WITH_PIECES
    if not _is_text(tokens) or not (has_pieces or _is_text(merges)):
        yield _finding("tokenizer-missing", "tokenizer.ggml.tokens", "the tokenizer's tokens or merges are missing.")
        return
    if vocab_size is not None and len(tokens) != vocab_size:
        message = f"{len(tokens)} tokens are listed, and there are {vocab_size} embeddings."
        yield _finding("vocabulary", "tokenizer.ggml.tokens", message)
    needed_words = {"model": PIECES if has_pieces else MODEL} | ({"pre": PRE} if kind in HYBRIDS else {})
    for key, needed in needed_words.items():
        given = metadata.get(f"tokenizer.ggml.{key}")
        if given != needed:
            message = (
                f"it is {str(given)[:40]!r}, and the converter writes {needed!r} for {kind}: llama.cpp splits text "
                f"otherwise."
            )
            yield _finding("tokenizer-differs", f"tokenizer.ggml.{key}", message)
    yield from _malformed(metadata, len(tokens))
    if reference is None:
        return
    try:
        rules = tokenizer_rules(reference)
    except UsageError:
        return
    yield from _differences(metadata, rules, tokens, None if has_pieces else merges)
    yield from _ends(metadata, rules, reference)
    pre = metadata.get("tokenizer.ggml.pre")
    message = (
        "text is measured through the reference's tokenizer, on the same token ids; of the file's own, tokens, merges, "
        f"kinds and special tokens were compared, and not llama.cpp's rule {pre!r} that splits text. The file names no "
        "generation settings: the reference's are taken."
    )
    yield _finding("tokenizer-of-the-reference", held.path.name, message, Severity.ADVISORY)


def _malformed(metadata: Mapping[str, Any], count: int) -> Iterator[Finding]:
    """Kinds that are not one of every token, and ids that are no whole numbers: whatever the reference has."""
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not _is_kinds(kinds, count):
        told = "are missing" if kinds is None else f"are not a list of {count} whole numbers"
        yield _finding("tokenizer-differs", "tokenizer.ggml.token_type", f"the kinds of the {count} tokens {told}.")
    for key in sorted(_IDS):
        value = metadata.get(f"tokenizer.ggml.{key}")
        if value is not None and type(value) is not int:
            message = f"it is {str(value)[:40]}, and an id is a whole number."
            yield _finding("special-token-differs", f"tokenizer.ggml.{key}", message)


def _is_kinds(value: Any, count: int) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) == count and all(type(one) is int for one in value)


def _is_text(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def converted(rules: Mapping[str, Any], count: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, kinds and merges as the converter writes them for `tokenizer_rules`, of `count` ids."""
    model = rules["backend"].get("model") or {}
    words = {number: token for token, number in (model.get("vocab") or {}).items()}
    kinds = dict.fromkeys(words, NORMAL)
    for added in rules["backend"].get("added_tokens") or []:
        token = added["content"]
        special = added.get("special") or (token.startswith("<|") and token.endswith("|>"))
        words[added["id"]], kinds[added["id"]] = token, CONTROL if special else OWN
    merges = [merge if isinstance(merge, str) else _joined(merge) for merge in model.get("merges") or []]
    return (
        [words.get(number, f"[PAD{number}]") for number in range(count)],
        [kinds.get(number, UNUSED) for number in range(count)],
        merges,
    )


def _joined(pair: list[str]) -> str:
    """The halves of a merge, a space within one written as the byte alphabet writes it."""
    return " ".join(half.replace(" ", "\u0120") for half in pair)


def _differences(
    metadata: Mapping[str, Any], rules: Mapping[str, Any], tokens: list[str], merges: list[str] | None
) -> Iterator[Finding]:
    """Tokens, merges and kinds that are not the converter's; `merges` is None for pieces."""
    needed, kinds, needed_merges = converted(rules, len(tokens))
    pairs = {"tokens": (tokens, needed)} | ({} if merges is None else {"merges": (merges, needed_merges)})
    for key, (mine, theirs) in pairs.items():
        differing = [number for number, (one, other) in enumerate(zip_longest(mine, theirs)) if one != other]
        if differing:
            told = "; ".join(f"{at} is {_at(mine, at)!r}, not {_at(theirs, at)!r}" for at in differing[:SHOWN])
            more = f"; {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
            message = f"{key} differ from the reference's: {told}{more}."
            yield _finding("tokenizer-differs", f"tokenizer.ggml.{key}", message)
    given = metadata.get("tokenizer.ggml.token_type")
    if merges is not None and _is_kinds(given, len(kinds)) and given != kinds:
        differing = [number for number, (one, other) in enumerate(zip(given, kinds, strict=True)) if one != other]
        control = [number for number in differing if CONTROL in (given[number], kinds[number])]
        first = (control or differing)[0]
        told, wanted = (_KINDS.get(each[first], "nothing known") for each in (given, kinds))
        message = (
            f"the kinds of {len(differing)} tokens are not those that the converter gives: "
            f"{tokens[first]!r} is {told}, not {wanted}."
        )
        severity = Severity.BLOCKING if control else Severity.ADVISORY
        yield _finding("tokenizer-differs", "tokenizer.ggml.token_type", message, severity)


def _at(listed: list[Any], number: int) -> Any:
    return listed[number] if number < len(listed) else None


def _ends(metadata: Mapping[str, Any], rules: Mapping[str, Any], reference: HeldFolder) -> Iterator[Finding]:
    """Tokens that begin and end texts."""
    tokens = metadata["tokenizer.ggml.tokens"]
    ends = {token for name, token in rules["special_tokens"].items() if name == "eos_token"}
    stops = reference.json("generation_config.json") if "generation_config.json" in reference else {}
    listed = stops.get("eos_token_id")
    ids = {one for one in (listed if isinstance(listed, list) else [listed]) if isinstance(one, int)}
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        mine = metadata.get(f"tokenizer.ggml.{key}")
        if mine is None and key != "eos_token_id":
            continue
        token = _at(tokens, mine) if type(mine) is int and mine >= 0 else None
        is_known = type(mine) is int and (mine in ids or token in ends)
        if (ends or ids) and not is_known:
            message = (
                f"a token that ends an answer is {token!r} ({mine}), the reference's {sorted(ends)} {sorted(ids)}."
            )
            yield _finding("special-token-differs", f"tokenizer.ggml.{key}", message)
    for kind, where in _ADDED.items():
        key = f"tokenizer.ggml.add_{kind}_token"
        if metadata.get(key) not in (None, False) and rules["backend"].get("post_processor") is None:
            message = f"llama.cpp puts a token {where} every text, and the reference's tokenizer none."
            yield _finding("special-token-differs", key, message)
