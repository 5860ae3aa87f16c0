"""A GGUF is read within limits: whatever its header claims, one clear sentence, little memory and little time."""

import os
import re
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.gguf.header import GgufHeader, read_gguf_header
from q36eval.checkpoints.gguf.types import DECODED, FLOATS, QUANTIZED, TYPES
from q36eval.checkpoints.open_files import HeldFile
from q36eval.errors import CorruptCheckpointError, Q36Error, UsageError
from tests.q36eval.checkpoints.gguf_files import Gguf, take_apart
from tests.raising import raises

GOLDEN = Path(__file__).parents[2] / "assets" / "ggufs" / "bf16.gguf"
Change = Callable[[Gguf], None]


def read(file: Path) -> GgufHeader:
    return read_gguf_header(HeldFile(file))


def test_the_table_of_types_is_that_of_the_gguf_package() -> None:
    constants = pytest.importorskip("gguf.constants", reason="the gguf extra is not installed")
    theirs = {kind.value: (kind.name, *sizes) for kind, sizes in constants.GGML_QUANT_SIZES.items()}
    ours = {number: (each.name, each.values, each.n_bytes) for number, each in TYPES.items()}
    # of Q8_1, in which llama.cpp keeps activations, the package has an older layout
    differing = {value[0] for key, value in theirs.items() if ours.get(key) != value}
    assert differing <= {"Q8_1"}
    assert {*DECODED} <= {name for name, *_ in theirs.values()}
    assert set(DECODED) == {*FLOATS, *QUANTIZED} <= {each.name for each in TYPES.values()}


def test_a_header_says_where_every_tensor_lies() -> None:
    header, parsed = read(GOLDEN), take_apart(GOLDEN)
    data = GOLDEN.read_bytes()
    assert list(header.tensors) == list(parsed.tensors)
    for name, tensor in header.tensors.items():
        assert tensor.shape == tuple(reversed(parsed.tensors[name].sizes))
        assert data[tensor.begin : tensor.end] == parsed.tensors[name].data
    assert header.metadata["general.architecture"] == "qwen35moe"
    assert header.metadata["qwen35moe.rope.dimension_sections"] == [11, 11, 10, 0]


def of_file(**changes: object) -> Change:
    return lambda file: vars(file).update(changes)


def of_tensor(**changes: object) -> Change:
    return lambda file: vars(file.tensors["token_embd.weight"]).update(changes)


def entry(kind: int, raw: bytes) -> Change:
    return lambda file: file.entries.update(a=(kind, raw))


DAMAGE: dict[str, tuple[Change, str]] = {
    "other magic": (of_file(magic=b"GGML"), "GGUF"),
    "version 1": (of_file(version=1), "version 1 .*2 and 3"),
    "big-endian": (of_file(version=0x03000000), "big-endian"),
    "2^60 entries": (of_file(n_entries=2**60), "counts"),
    "a tensor more": (lambda file: setattr(file, "n_tensors", len(file.tensors) + 1), "."),
    "2^50 bytes of text": (entry(8, struct.pack("<Q", 2**50)), "1125899906842624"),
    "2^60 elements": (entry(9, struct.pack("<IQ", 4, 2**60)), "1152921504606846976"),
    "an array of arrays": (entry(9, struct.pack("<IQ", 9, 1)), "type 9"),
    "an unknown type of entry": (entry(99, b""), "type 99"),
    "an entry twice": (of_file(again=("qwen35moe.block_count",)), "'qwen35moe.block_count' twice"),
    "a tensor twice": (of_file(again=("token_embd.weight",)), "'token_embd.weight' twice"),
    "alignment 0": (lambda file: file.put("general.alignment", 0), "general.alignment is 0"),
    "alignment 2^31": (lambda file: file.put("general.alignment", 2**31), "general.alignment is"),
    "an unknown type id": (of_tensor(type=77), "type id 77"),
    "no dimension": (of_tensor(sizes=[]), "has 0 dimensions"),
    "a size of 0": (of_tensor(sizes=[32, 0]), "no tensor has"),
    "sizes that wrap around": (of_tensor(sizes=[2**32, 2**32]), "no tensor has"),
    "rows of no whole blocks": (of_tensor(type=8, sizes=[20, 64]), "blocks of 32"),
    "a tensor beyond the end": (of_tensor(offset=2**40), "truncated, tensor 'token_embd.weight'"),
    "a tensor over another": (of_tensor(offset=0), "overlaps"),
    "a tensor off its multiple": (of_tensor(offset=8), "no multiple of 32"),
    "a larger type": (of_tensor(type=0), "overlaps|truncated"),
    "a smaller type": (of_tensor(type=24), "belong"),
}


@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_what_a_header_must_not_say_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    change, told = DAMAGE[name]
    parsed = take_apart(GOLDEN)
    change(parsed)
    file = parsed.write(tmp_path / "x.gguf")
    tracemalloc.start()
    before = time.process_time()
    try:
        with raises(CorruptCheckpointError, "gguf-malformed") as raised:
            read(file)
        assert re.search(told, str(raised.value))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(raised.value).count("\n") == 0
    assert str(raised.value).startswith(str(file))
    assert peak < 2**24  # the file has 90 kB; sixteen megabytes are some chunks of it
    assert time.process_time() - before < 10


@pytest.mark.parametrize("cut", [0, 3, 7, 23, 24, 30, 1000, 5000, 50_000, None])
def test_a_truncated_file_is_refused_and_one_with_more_after_its_last_tensor(cut: int | None, tmp_path: Path) -> None:
    file = take_apart(GOLDEN).write(tmp_path / "x.gguf", cut, more=b"x" * 64)
    with raises(CorruptCheckpointError, "gguf-malformed", "" if cut is not None else "64 bytes"):
        read(file)


def test_text_that_is_not_utf8_is_written_out(tmp_path: Path) -> None:
    parsed = take_apart(GOLDEN)
    parsed.entries["general.name"] = (8, struct.pack("<Q", 2) + b"\xff\n")
    assert read(parsed.write(tmp_path / "x.gguf")).metadata["general.name"] == "\\xff\n"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    for path in (tmp_path / "x.gguf", tmp_path):
        with raises(UsageError, "file-not-regular"):
            open_checkpoint(path)


NEEDED = ("embedding_length", "ssm.state_size", "rope.freq_base", "expert_used_count")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"general.architecture": "bert"}, ("architecture-unsupported", "'bert'", "qwen35moe")),
        ({"general.architecture": "clip"}, ("gguf-without-text-model",)),
        ({"general.type": "mmproj"}, ("gguf-without-text-model",)),
        ({"general.type": "imatrix"}, ("gguf-without-text-model", "'imatrix'")),
        ({"qwen35moe.block_count": 0}, ("gguf-malformed", "is 0", "block_count")),
        ({"qwen35moe.block_count": 2**31 - 1}, ("gguf-malformed",)),
        ({"qwen35moe.expert_count": 2**30}, ("config-invalid", "num_experts")),
        ({"qwen35moe.ssm.time_step_rank": 3}, ("gguf-malformed", "inner_size", "32, of")),
        ({"qwen35moe.attention.layer_norm_rms_epsilon": "x"}, ("gguf-malformed",)),
        ({"qwen35moe.attention.recurrent_layers": [True]}, ("gguf-malformed",)),
        ({"split.count": 3}, ("gguf-split-malformed", "3 files")),
        *(({f"qwen35moe.{key}": None}, ("gguf-malformed", "qwen35moe", key)) for key in NEEDED),
    ],
)
def test_metadata_that_make_no_model_are_refused(
    change: dict[str, object], expected: tuple[str, ...], tmp_path: Path
) -> None:
    parsed = take_apart(GOLDEN)
    for key, value in change.items():
        if value is None or (isinstance(value, str) and key in parsed.entries and parsed.entries[key][0] != 8):
            del parsed.entries[key]
        if value is not None:
            parsed.put(key, value)
    with raises(Q36Error, *expected):
        open_checkpoint(parsed.write(tmp_path / "x.gguf"))


def test_a_type_that_is_not_decoded_names_itself_and_what_is(tmp_path: Path) -> None:
    parsed = take_apart(GOLDEN)
    parsed.tensors["blk.0.ffn_gate_exps.weight"].type = 26  # I32, in half as many numbers
    parsed.tensors["blk.0.ffn_gate_exps.weight"].sizes[0] //= 2
    with raises(UsageError, "format-unsupported", "ffn_gate_exps", "I32", "F32"):
        open_checkpoint(parsed.write(tmp_path / "x.gguf"))
