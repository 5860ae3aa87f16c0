"""The sandbox tokenizer: byte-level BPE with single-digit tokens and Qwen's special tokens, 1,024 entries in all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from q36eval.app.sandbox.architecture import CONTEXT_LENGTH, VOCABULARY_SIZE

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
PRE_TOKENIZER = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


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
