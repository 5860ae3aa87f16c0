"""Sampled answers: one file per reference, whole or absent, reused; only their own tokens are scored."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from q36eval.errors import EngineError, UsageError
from q36eval.kl.on_policy import (
    OnPolicyPrompt,
    OnPolicySettings,
    Sampled,
    answers_path,
    kept_or_sampled,
    prompts_sha256,
    read_answers,
)
from q36eval.probes import Progress
from tests.raising import raises

SETTINGS = OnPolicySettings(max_new_tokens=24)
PROMPTS = [
    OnPolicyPrompt(id=f"p{n}", slice=f"on_policy/{n % 2}", messages=({"role": "user", "content": text},))
    for n, text in enumerate(
        [
            "Kolik je 3 + 4?",
            "Vyber stav z tohoto seznamu: nová, zrušená. Odpověz jedním slovem.",
            "Write a poem.",
            "Ahoj",
        ]
    )
]


def kept(
    root: Path, engine: Any, prompts: list[OnPolicyPrompt] = PROMPTS, settings: OnPolicySettings = SETTINGS
) -> Any:
    return kept_or_sampled(root, engine.identity, prompts, settings, lambda: engine, Progress())


THINKING = OnPolicyPrompt(
    id="thinking",
    slice="on_policy/0",
    messages=({"role": "user", "content": "Kupuji stan. Obchod A: cena 400 Kč, sleva 130 Kč. Obchod B: cena 500 Kč."},),
    enable_thinking=True,
    max_new_tokens=90,
)


@pytest.mark.long
@pytest.mark.parametrize(("allowed", "most"), [(None, 90), (60, 60)])
def test_with_reasoning_an_answer_may_take_what_the_thoughts_need(tmp_path, bf16, allowed, most) -> None:
    settings = SETTINGS.model_copy(update={"temperature": 10.0, "top_p": 1.0, "thinking_tokens": allowed})
    (answer,) = kept(tmp_path, bf16, [THINKING], settings).answers
    # at this temperature nothing ends by itself, and other answers are cut off after 24 tokens
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", most)


def test_answers_are_sampled_once_and_hold_everything(tmp_path: Path, bf16: Any) -> None:
    found, never = kept(tmp_path, bf16), Mock(side_effect=AssertionError("the reference was loaded again"))
    again = kept_or_sampled(tmp_path, bf16.identity, PROMPTS, SETTINGS, never, Progress())
    assert again == found
    assert [answer.id for answer in found.answers] == [prompt.id for prompt in PROMPTS]
    for answer, prompt in zip(found.answers, PROMPTS, strict=True):
        rendered = bf16.tokenizer.decode(answer.prompt_ids)
        assert prompt.messages[0]["content"] in rendered
        assert rendered.endswith("</think>\n\n")
        assert answer.slice == prompt.slice
        ends = answer.finish_reason == "stop"
        # the decision to stop is part of what is compared
        assert bf16.tokenizer.decode(answer.token_ids) == answer.text + ("<|im_end|>" if ends else "")
        assert ends == (len(answer.token_ids) < SETTINGS.max_new_tokens)
    (file,) = tmp_path.glob("*.jsonl")
    copy = tmp_path / "elsewhere" / "answers.jsonl"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    assert read_answers(copy) == found


@pytest.mark.long
def test_an_answer_depends_on_its_prompt_and_seed_and_not_on_its_neighbours(tmp_path: Path, bf16: Any) -> None:
    whole = kept(tmp_path, bf16).answers
    alone = kept(tmp_path, bf16, PROMPTS[2:3]).answers
    # in BF16 another batch may round otherwise, so the end of a long answer may differ; its beginning does not
    assert alone[0].token_ids[:4] == whole[2].token_ids[:4]
    other = kept(
        tmp_path, bf16, settings=SETTINGS.model_copy(update={"seed": 1, "temperature": 2.0, "top_p": 1.0})
    ).answers
    assert [a.token_ids for a in other] != [a.token_ids for a in whole]
    assert len(list(tmp_path.glob("*.jsonl"))) == 3


def test_what_does_not_fit_is_refused(tmp_path: Path, bf16: Any) -> None:
    found = kept(tmp_path, bf16)
    (file,) = tmp_path.glob("*.jsonl")
    foreign = found.sampled.model_copy(update={"settings": OnPolicySettings(seed=2)})
    with raises(UsageError, "sampled-answers-identity", "settings"):
        read_answers(file, foreign)
    whole = file.read_bytes()
    for damage in (whole[:-20], whole[:40], b"", whole.replace(b"on_policy/1", b"on_policy/2"), whole + b"{}\n"):
        file.write_bytes(damage)
        with raises(UsageError, "sampled-answers-damaged"):
            kept(tmp_path, bf16)
    with raises(UsageError, "file-unreadable"):
        read_answers(tmp_path / "none.jsonl")


def test_an_engine_that_fails_leaves_no_file(tmp_path: Path, bf16: Any) -> None:
    long = OnPolicyPrompt(id="long", slice="s", messages=({"role": "user", "content": "slovo " * 9000},))
    with raises(EngineError, "generation-failed"):
        kept(tmp_path, bf16, [*PROMPTS, long])
    assert not list(tmp_path.glob("*.jsonl*"))


@pytest.mark.long
def test_a_killed_sampling_leaves_nothing_half_written(tmp_path: Path, bf16: Any) -> None:
    endless = {"settings": OnPolicySettings(max_new_tokens=2000, temperature=2.0, top_p=1.0)}
    process = multiprocessing.get_context("fork").Process(target=kept, args=(tmp_path, bf16), kwargs=endless)
    process.start()
    while not list(tmp_path.glob("*.lock")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not list(tmp_path.glob("*.jsonl*"))
    assert len(kept(tmp_path, bf16).answers) == len(PROMPTS)


def test_the_key_is_of_all_that_decides_the_answers(bf16: Any) -> None:
    base = Sampled(identity=bf16.identity, prompts_sha256=prompts_sha256(PROMPTS), settings=SETTINGS)
    thinking = OnPolicyPrompt(**{**vars(PROMPTS[0]), "enable_thinking": True})
    others = [
        base.model_copy(update={"identity": bf16.identity.model_copy(update={"checkpoint_sha256": "0"})}),
        base.model_copy(update={"prompts_sha256": prompts_sha256([thinking, *PROMPTS[1:]])}),
        base.model_copy(update={"settings": SETTINGS.model_copy(update={"top_p": 0.81})}),
        base.model_copy(update={"format": 0}),
    ]
    assert len({answers_path(Path("/x"), one) for one in [base, *others]}) == 5
    assert prompts_sha256(PROMPTS) == prompts_sha256(PROMPTS[::-1])
    assert json.loads(base.model_dump_json())["settings"]["temperature"] == 0.7


def test_shipped_prompts_are_of_every_canary_and_our_own_chat() -> None:
    from q36eval.config import Paths
    from q36eval.run.materials import answered_canaries, on_policy_prompts

    prompts = on_policy_prompts(OnPolicySettings(), Paths.default())
    assert len({prompt.id for prompt in prompts}) == len({prompt.content for prompt in prompts}) == len(prompts)
    assert 100 <= len(prompts) <= 150
    asked = {prompt.id.split("/")[1] for prompt in prompts if prompt.slice == "on_policy/canaries"}
    assert asked == {spec.id for spec in answered_canaries()}
    assert {prompt.slice for prompt in prompts} == {"on_policy/canaries", "on_policy/chat"}
    assert not on_policy_prompts(OnPolicySettings(per_canary=0, chat=False), Paths.default())
