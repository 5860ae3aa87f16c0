"""The watched deployment, its interval and cost, and an alarm's confidence: checked options and deployment file."""

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from q36eval.config.answer_budgets import Written
from q36eval.errors import UsageError
from q36eval.files import first_problem, read_yaml

YEAR_S = 365.25 * 86400.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""Of a deployment: it is a label, a folder's name and part of a branch's name in history."""


def seconds_of(text: str) -> float:
    """Seconds of `90s`, `15m`, `2h` or `1d`.

    Raises:
        ValueError: it is not a duration.
    """
    matched = _DURATION.fullmatch(text.strip())
    if matched is None or float(matched[1]) <= 0:
        raise ValueError(f"{text!r} is not a duration; write 90s, 15m or 2h")
    return float(matched[1]) * _SECONDS[matched[2]]


class Budget(Written):
    """The limits for queries: HTTP requests of any kind, tokens of prompts and completions."""

    requests_per_day: Annotated[int, Field(ge=1)] = 5_000
    tokens_per_day: Annotated[int, Field(ge=1)] = 2_000_000
    requests_per_round: Annotated[int, Field(ge=8)] = 60
    tokens_per_round: Annotated[int, Field(ge=1)] = 60_000


class Amounts(Written):
    """Items of one round. `suspects` are required prompts that were lost in the last round and are repeated."""

    required: Annotated[int, Field(ge=0)] = 8
    suspects: Annotated[int, Field(ge=0)] = 4
    families: Annotated[int, Field(ge=0)] = 8
    kl: Annotated[int, Field(ge=0)] = 6
    differentials: Annotated[int, Field(ge=0)] = 2


class Alarm(Written):
    """The confidence of an alarm. Every rate is for all streams together.

    `years_between_false_openings` is the minimum mean time until a quiet deployment opens an incident; at most
    `false_confirmations` (a share) of those are confirmed. A deployment that still loses `recovery_margin` more than
    quiet counts as recovered at most once in `rounds_between_false_closings` rounds on average.
    """

    years_between_false_openings: Annotated[float, Field(gt=0)] = 1.0
    false_confirmations: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    recovery_margin: Annotated[float, Field(gt=0, lt=0.9)] = 0.15
    rounds_between_false_closings: Annotated[float, Field(gt=1)] = 1_000.0
    closing_rounds: Annotated[int, Field(ge=1)] = 4
    calibration_rounds: Annotated[int, Field(ge=2)] = 24
    quiet_floor: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """The minimum quiet loss rate, whatever a calibration saw; the rate of a required prompt that was right."""
    kl_tolerance: Annotated[float, Field(gt=0)] = 0.001
    """Nats a token: a document that moved less is never lost, nor one that moved less than twice what any did in
    the calibration."""
    anchors: Annotated[int, Field(ge=2)] = 24
    """Texts whose log-probabilities the calibration stores; half of them are only for confirming."""


class BackOff(Written):
    """When the endpoint is left alone."""

    latency_multiple: Annotated[float, Field(gt=1)] = 3.0
    """Limit for the time per generated token, relative to its own baseline."""
    latency_floor_s: Annotated[float, Field(ge=0)] = 0.02
    """Seconds per token that never count as slow."""
    longest_s: Annotated[float, Field(gt=0)] = 3600.0


class Deployment(Written):
    """One deployment: its address, its branch, and the settings of its watch."""

    name: Annotated[str, Field(pattern=NAME)]
    branch: str
    base_url: str | None = None
    served_model: str | None = None
    family: str | None = None
    policy: str = "watch"
    every: str = "15m"
    budget: Budget = Budget()
    canaries: tuple[str, ...] = ()
    """Ids of the canaries to draw from; by default all that the family knows."""
    amounts: Amounts = Amounts()
    alarm: Alarm = Alarm()
    back_off: BackOff = BackOff()
    webhooks: tuple[str, ...] = ()
    slack: tuple[str, ...] = ()
    spool_rounds: Annotated[int, Field(ge=1)] = 200
    """The maximum of finished rounds waiting on disk for their history."""

    @field_validator("every")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        if seconds_of(text) < 10:
            raise ValueError("rounds are at least 10 seconds apart")
        return text

    @model_validator(mode="after")
    def _draws_something(self) -> Self:
        if self.amounts.required + self.amounts.families + self.amounts.kl == 0:
            raise ValueError("amounts: a round without required prompts, families and kl measures nothing")
        return self

    @model_validator(mode="after")
    def _holds_a_round(self) -> Self:
        for what in ("requests", "tokens"):
            day, one = (getattr(self.budget, f"{what}_per_{span}") for span in ("day", "round"))
            if day < one:
                raise ValueError(
                    f"budget: {day:,} {what} a day hold no round, which may take {one:,}; raise the one or lower the "
                    f"other"
                )
        return self

    @property
    def every_s(self) -> float:
        """Seconds between the beginnings of two rounds."""
        return seconds_of(self.every)

    @property
    def alarm_rounds(self) -> float:
        """The mean number of rounds until a quiet deployment opens an incident, at least."""
        return max(2.0, self.alarm.years_between_false_openings * YEAR_S / self.every_s)

    @classmethod
    def named(cls, name_or_file: str, **options: object) -> "Deployment":
        """A deployment by its file, or by its name and options. An option that is not None replaces the file's.

        Raises:
            UsageError: the file or an option cannot be used.
        """
        given = {name: value for name, value in options.items() if value is not None}
        is_file = name_or_file.endswith((".yaml", ".yml"))
        body: dict[str, Any] = (
            read_yaml(Path(name_or_file), cls, "deployment file").model_dump() if is_file else {"name": name_or_file}
        )
        body |= given
        if "branch" not in body:
            raise UsageError(
                "branch-required",
                "Name the branch that the deployment serves (--branch): its tokenizer writes the prompts.",
            )
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise UsageError(
                "deployment-invalid", f"The deployment {name_or_file}: {first_problem(error, cls)}."
            ) from error
