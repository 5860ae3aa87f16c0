"""The reference's own sampled answers: realistic text on which a branch is compared token by token.

They are sampled once per reference and stored as one self-contained JSON Lines file: a header (the reference, the
sampling settings, a hash of the rest), then one line per answer with the token ids of prompt and answer.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from q36eval.chat import TemplateLimitError, TemplateRaisedError, rendered_chat
from q36eval.engines.base import Engine, Generated, GenerationRequest
from q36eval.engines.retries import with_retry
from q36eval.errors import EngineError, UsageError
from q36eval.files import canonical_json, json_sha256, write_atomically
from q36eval.kl.raw_texts import chat_prefix, raw_ids, writes_chats
from q36eval.locks import exclusive
from q36eval.probes import Progress
from q36eval.records import DeploymentIdentity, Record

ADVICE = "delete the file to sample them again; if it belongs to a pack, copy the pack again or capture a new one"

FORMAT = 2
"""Version of the file and of the sampling procedure; another version samples again."""


class OnPolicySettings(Record):
    """Sampling settings: by default Qwen's recommendation without thinking (temperature 0.7, top_p 0.8)."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 0.7
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.8
    seed: int = 20261121
    max_new_tokens: Annotated[int, Field(ge=1, le=32_768)] = 128
    """Maximum; a prompt may set a lower one."""
    thinking_tokens: Annotated[int | None, Field(ge=1, le=131_072)] = None
    """Maximum with reasoning, so that the answer after it is reached; None uses the prompt's own limit."""
    thinking_temperature: Annotated[float | None, Field(gt=0, le=10)] = None
    thinking_top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    """With reasoning; None uses the value without."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 keeps every token."""
    per_canary: Annotated[int, Field(ge=0)] = 4
    """Questions per canary; 0 omits the canaries."""
    chat: bool = True
    """Whether the chat prompts are answered, too."""
    prompts: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] | None = None
    """The list of `data/prompts` to use: the short `chat` by default, `release`, or `standard` for any model."""


@dataclass(frozen=True)
class OnPolicyPrompt:
    """One conversation to answer; `slice` is the slice of its answer."""

    id: str
    slice: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    enable_thinking: bool = False
    max_new_tokens: int = 128
    cluster: str | None = None
    """The common source with other prompts (a template); None if it is independent of all others."""

    @property
    def content(self) -> str:
        """Canonical JSON of the prompt; without a cluster it equals that of earlier versions."""
        content = {name: value for name, value in vars(self).items() if name != "cluster" or value is not None}
        return canonical_json(content, ascii_only=False)


class OnPolicyAnswer(Record):
    """An answer with its prompt as token ids; `token_ids` ends with the end-of-turn token if one was sampled."""

    id: str
    slice: str
    prompt_ids: Annotated[tuple[int, ...], Field(min_length=1)]
    token_ids: Annotated[tuple[int, ...], Field(min_length=1)]
    text: str
    finish_reason: str
    cluster: str | None = None

    @property
    def key(self) -> str:
        """Content hash of the prompt."""
        content = canonical_json([self.slice, self.id, self.prompt_ids, self.token_ids], ascii_only=False)
        return hashlib.sha256(f"kl on-policy\0{content}".encode()).hexdigest()


class Sampled(Record):
    """Everything that determines the answers: the reference, the prompts, and the sampling settings."""

    identity: DeploymentIdentity
    prompts_sha256: str
    settings: OnPolicySettings
    format: int = FORMAT

    @property
    def key(self) -> str:
        """Content hash that names the file."""
        return json_sha256(self.model_dump(mode="json", exclude_none=True))


@dataclass(frozen=True)
class OnPolicyAnswers:
    """A file of answers, read or to be written."""

    sampled: Sampled
    answers: tuple[OnPolicyAnswer, ...]
    prefix: tuple[int, ...] = ()
    """The tokens that this reference reads before a corpus text (`chat_prefix`), if measured."""

    @cached_property
    def lines(self) -> bytes:
        """The answers in their file format, one JSON document per line."""
        return b"".join(f"{answer.model_dump_json(exclude_none=True)}\n".encode() for answer in self.answers)

    @property
    def sha256(self) -> str:
        """Content hash of the answers."""
        return hashlib.sha256(self.lines).hexdigest()


def prompts_sha256(prompts: Sequence[OnPolicyPrompt]) -> str:
    """Content hash of a set of prompts, independent of their order."""
    return hashlib.sha256("\0".join(sorted(prompt.content for prompt in prompts)).encode()).hexdigest()


def answers_path(root: Path, sampled: Sampled) -> Path:
    """The path of that reference's answers to those prompts."""
    return root / f"on-policy-{sampled.key[:16]}.jsonl"


def kept_or_sampled(
    root: Path,
    identity: DeploymentIdentity,
    prompts: Sequence[OnPolicyPrompt],
    settings: OnPolicySettings,
    load_reference: Callable[[], Engine],
    progress: Progress,
    texts: Sequence[str] = (),
) -> OnPolicyAnswers:
    """The answers stored below `root`; sampled first if missing, by one process at a time.

    With `texts` the reference's chat prefix for them is measured and stored with the answers. A killed sampling leaves
    only its lock file, and starts over.

    Raises:
        UsageError: the file is damaged or was made by another reference, from other prompts or settings.
        EngineError: the reference could not answer.
    """
    sampled = Sampled(identity=identity, prompts_sha256=prompts_sha256(prompts), settings=settings)
    path = answers_path(root, sampled)
    if not path.exists():
        waiting = "waiting for another run to sample the reference's answers"
        with exclusive(path.with_suffix(".lock"), lambda: progress.stage(waiting, len(prompts))):
            if not path.exists():
                engine = load_reference()
                answers = sample_answers(engine, prompts, settings, progress)
                write_answers(path, OnPolicyAnswers(sampled, answers, chat_prefix(engine, texts)))
    return read_answers(path, sampled)


def sample_answers(
    engine: Engine, prompts: Sequence[OnPolicyPrompt], settings: OnPolicySettings, progress: Progress
) -> tuple[OnPolicyAnswer, ...]:
    """The engine's answers, in the order of `prompts`; the answer to a prompt depends on that prompt alone.

    An empty answer for which the engine reports no end-of-turn token has nothing to score and is left out.

    Raises:
        EngineError: a prompt failed twice, or the chat template does not render it.
        UsageError: the template cannot be rendered.
    """
    try:
        requests = {prompt.content: _request(prompt, settings, engine.tokenizer) for prompt in prompts}
    except TemplateRaisedError as error:
        raise EngineError(error.code, f"The reference could not be asked the on-policy prompts: {error}.") from error
    except TemplateLimitError as error:
        raise UsageError(error.code, f"The reference cannot be used: {error}") from error
    progress.stage("sampling the reference's own answers", len(requests))
    answered: dict[str, Generated] = {}
    for generated in with_retry(engine.generate, list(requests.values())):
        if generated.error is not None:
            raise EngineError(
                "generation-failed", f"The reference could not answer the on-policy prompts: {generated.error}."
            )
        answered[generated.request.key] = generated
        progress.advance()
    answers = (_answer(prompt, answered[requests[prompt.content].key]) for prompt in prompts)
    return tuple(answer for answer in answers if answer is not None)


def _request(prompt: OnPolicyPrompt, settings: OnPolicySettings, tokenizer: Any) -> GenerationRequest:
    thinks = False
    if writes_chats(tokenizer):
        text = rendered_chat(tokenizer, prompt.messages, prompt.tools, enable_thinking=prompt.enable_thinking)
        token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        thinks = prompt.enable_thinking and text != rendered_chat(
            tokenizer, prompt.messages, prompt.tools, enable_thinking=False
        )
    else:  # a base model continues the text
        token_ids = raw_ids(tokenizer, "\n\n".join([*(each["content"] for each in prompt.messages), ""]))
    # with the usual token limit, most of the compared text would be the beginning of a thought
    budget = min(prompt.max_new_tokens, settings.max_new_tokens)
    temperature, top_p = settings.temperature, settings.top_p
    if thinks:
        budget = settings.thinking_tokens or prompt.max_new_tokens
        temperature = settings.thinking_temperature or temperature
        top_p = settings.thinking_top_p or top_p
    return GenerationRequest(
        key=hashlib.sha256(prompt.content.encode()).hexdigest(),
        token_ids=token_ids,
        max_new_tokens=budget,
        group="on-policy",
        temperature=temperature,
        top_p=top_p,
        top_k=settings.top_k,
        seed=settings.seed,
    )


def _answer(prompt: OnPolicyPrompt, generated: Generated) -> OnPolicyAnswer | None:
    end = () if generated.end_id is None else (generated.end_id,)
    token_ids = (*generated.token_ids, *end)
    if not token_ids:
        return None
    return OnPolicyAnswer(
        id=prompt.id,
        slice=prompt.slice,
        prompt_ids=generated.request.token_ids,
        token_ids=token_ids,
        text=generated.text,
        finish_reason=generated.finish_reason,
        cluster=prompt.cluster,
    )


def write_answers(path: Path, answers: OnPolicyAnswers) -> None:
    """Write the file atomically."""
    header: dict[str, Any] = {"sampled": answers.sampled.model_dump(mode="json"), "answers_sha256": answers.sha256}
    if answers.prefix:
        header["prefix"] = list(answers.prefix)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, canonical_json(header).encode() + b"\n" + answers.lines)


def read_answers(path: Path, expected: Sampled | None = None) -> OnPolicyAnswers:
    """Read a file of answers.

    Raises:
        UsageError: the file is unreadable, damaged, or does not match `expected`; names the fields.
    """
    try:
        first, _, rest = path.read_bytes().partition(b"\n")
        header = json.loads(first)
        if hashlib.sha256(rest).hexdigest() != header["answers_sha256"]:
            raise ValueError("its answers are not those that were written")
        sampled = Sampled.model_validate(header["sampled"])
        answers = tuple(OnPolicyAnswer.model_validate_json(line) for line in rest.splitlines())
        prefix = tuple(map(int, header.get("prefix", ())))
    except OSError as error:
        raise UsageError(
            "file-unreadable", f"The sampled answers {path} cannot be read: {error.strerror}; check the path."
        ) from error
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise UsageError("sampled-answers-damaged", f"The sampled answers {path} are damaged; {ADVICE}.") from error
    if expected is not None and sampled != expected:
        different = [name for name in Sampled.model_fields if getattr(sampled, name) != getattr(expected, name)]
        raise UsageError(
            "sampled-answers-identity",
            f"The sampled answers {path} were made with another {', '.join(different)}; {ADVICE}.",
        )
    return OnPolicyAnswers(sampled, answers, prefix)
