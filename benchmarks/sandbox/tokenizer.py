"""The sandbox tokenizer: byte-level BPE with single-digit tokens and Qwen's special tokens, 1,024 entries in all.

`python -m benchmarks.sandbox.tokenizer OUT` trains it on a seeded sample of the training mixture.
"""

import random
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.sandbox.architecture import CHAT_TEMPLATE, CONTEXT_LENGTH, VOCABULARY_SIZE
from benchmarks.sandbox.mixture import TOKEN_SHARES, Renderer, document

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
PRE_TOKENIZER = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterator[str]) -> Any:
    """Train on `texts` and return a `PreTrainedTokenizerFast` of exactly `VOCABULARY_SIZE` entries."""
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
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    if core.get_vocab_size() != VOCABULARY_SIZE:
        raise RuntimeError(f"the tokenizer has {core.get_vocab_size()} entries instead of {VOCABULARY_SIZE}")
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def sample(seed: int, characters: int) -> Iterator[str]:
    """Texts of the mixture, about in proportion to their token shares."""
    rng, renderer = random.Random(f"tokenizer-{seed}"), Renderer()
    for kind in sorted(TOKEN_SHARES):
        wanted = characters * TOKEN_SHARES[kind]
        while wanted > 0:
            drawn = document(kind, rng, "train", renderer)
            text = drawn.prompt + drawn.answer
            wanted -= len(text)
            yield text


def main() -> None:
    """Write the tokenizer files into the folder named on the command line."""
    tokenizer = train_tokenizer(sample(seed=1, characters=12_000_000))
    tokenizer.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
