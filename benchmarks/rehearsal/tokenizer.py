"""A tokenizer of the family's size and special tokens, trained on our own texts: the published one is not ours to ship.

Byte-level BPE of some thousand merges. The rest of the vocabulary are made-up words that no text is split into and
that a model with random weights answers with. English prose takes about as many tokens as with the real one.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.sandbox.prose import SLICES, document

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
PRE_TOKENIZER = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
LEARNT = 6_000
"""Entries that are learnt from texts, at most."""
TEXTS_PER_SLICE = 400
TEMPLATE = Path(__file__).parent / "chat_template.jinja"


def texts(seed: int = 1) -> Iterator[str]:
    """Prose, code, mathematics and JSON of the sandbox's generators."""
    rng = random.Random(f"rehearsal-tokenizer-{seed}")
    for name in SLICES:
        for _ in range(TEXTS_PER_SLICE):
            yield document(rng, name, 200).answer


def words() -> Iterator[str]:
    """Made-up words in three syllables, each with its space before it, as a byte-level vocabulary writes them."""
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvz" for vowel in "aeiouy"]
    return (f"Ġ{a}{b}{c}{end}" for end in "nrs" for a in syllables for b in syllables for c in syllables)


def train(vocabulary: int, context_length: int, template: str) -> Any:
    """A `PreTrainedTokenizerFast` of exactly `vocabulary` entries.

    Raises:
        ValueError: fewer than the learnt ones take.
    """
    import json

    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    own = vocabulary - len(SPECIAL) - len(MARKUP)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if own <= len(alphabet):
        raise ValueError(f"a vocabulary of {vocabulary} has no room for all bytes")
    trainer = trainers.BpeTrainer(vocab_size=min(LEARNT, own), initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(texts(), trainer)
    content = json.loads(core.to_str())
    entries = content["model"]["vocab"]
    for word in words():
        if len(entries) == own:
            break
        entries.setdefault(word, len(entries))
    core = Tokenizer.from_str(json.dumps(content))
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    if core.get_vocab_size() != vocabulary:
        raise ValueError(f"the tokenizer has {core.get_vocab_size()} entries instead of {vocabulary}")
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
