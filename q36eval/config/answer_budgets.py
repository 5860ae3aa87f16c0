"""How the models of a family are let answer: budgets of tokens, and the settings that they are sampled with."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

THINKING = "thinking"
"""The skill of canaries that are asked with reasoning, sampled."""


class Written(BaseModel):
    """Something a person wrote: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SamplingSettings(Written):
    """How answers are sampled, as a card names it. `seeds` are the answers asked of one prompt; `top_k` 0 keeps all."""

    temperature: Annotated[float, Field(gt=0, le=10, strict=True)]
    top_p: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    top_k: Annotated[int, Field(ge=0, strict=True)] = 0
    presence_penalty: Annotated[float, Field(ge=-2, le=2, strict=True)] = 0.0
    seeds: Annotated[int, Field(ge=1, le=64, strict=True)] = 1


class Budget(Written):
    """Tokens that an answer may take, by the skills asked for; `need` says what was measured, and of what."""

    skills: Annotated[tuple[str, ...], Field(min_length=1)]
    tokens: Annotated[int, Field(ge=1, le=131_072, strict=True)]
    need: Annotated[str, Field(min_length=1)]


class Thinking(Written):
    """How answers with reasoning are asked for: at most `tokens`, reasoning included, sampled as users sample them."""

    tokens: Annotated[int, Field(ge=1, le=131_072, strict=True)]
    need: Annotated[str, Field(min_length=1)]
    sampling: SamplingSettings | None = None
    source: str = ""
    """Whose settings those are."""


class Answering(Written):
    """What a family's models need to answer; where it says nothing, a canary's own settings hold."""

    budgets: tuple[Budget, ...] = ()
    thinking: Thinking | None = None

    @model_validator(mode="after")
    def _one_budget_a_skill(self) -> Self:
        named = [skill for budget in self.budgets for skill in budget.skills]
        twice = sorted({skill for skill in named if named.count(skill) > 1})
        if twice:
            raise ValueError(f"budgets: {twice[0]} has two of them")
        if self.thinking is not None and THINKING in named:
            raise ValueError(f"budgets: {THINKING} has its own under thinking.tokens; leave it out here")
        return self

    @property
    def largest(self) -> int:
        """The greatest of all budgets; 0 without any."""
        thinking = [] if self.thinking is None else [self.thinking.tokens]
        return max([*(budget.tokens for budget in self.budgets), *thinking], default=0)

    def tokens_of(self, skill: str) -> int | None:
        """The budget of a skill; None where none is named."""
        return next((budget.tokens for budget in self.budgets if skill in budget.skills), None)
