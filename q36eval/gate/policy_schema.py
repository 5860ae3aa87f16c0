"""What a policy file may say: a whole policy, or what one changes of another. Every unknown key is refused.

A part has the fields of its model in `policy`, with the same bounds, and none has to be there but a name.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model

from q36eval.gate.policy import Criterion, Informative, Margin, PolicyHead, PolicyModel, SchemeFigure


def _part(model: type[BaseModel], doc: str, name: str | None = None, **parts: Any) -> Any:
    """The model with every field but `name` optional; `parts` are the fields whose values are parts themselves."""
    fields: dict[str, Any] = {}
    for key, field in model.model_fields.items():
        kind = parts.get(key, field.annotation)
        for bound in () if key in parts else field.metadata:
            kind = Annotated[kind, bound]
        fields[key] = kind, Field(default=... if key == name else None, description=field.description)
    return create_model(f"{model.__name__}Part", __base__=PolicyModel, __doc__=doc, **fields)


SchemePart = _part(
    SchemeFigure,
    "The figure that is accepted for one quantization scheme; of an inherited one only what changes.",
    "scheme",
)
MarginPart = _part(
    Margin,
    "How much may be lost, and where that figure comes from.",
    schemes=tuple[SchemePart, ...],  # type: ignore[valid-type]
)
InformativePart = _part(
    Informative,
    "What the reference must be able to do, for a comparison of answers that are right or wrong to be evidence.",
)
CriterionPart = _part(
    Criterion,
    "One rule over one measurement; of an inherited criterion only what changes.",
    "id",
    margin=MarginPart,
    informative=InformativePart | None,
)


class PolicyFile(PolicyHead):
    """A policy file of q36eval: which measurements decide about a release, by which margin, for which lane."""

    extends: str | None = Field(
        default=None,
        min_length=1,
        description="A shipped policy by its name, or a policy file (.yaml) relative to this one: its criteria are "
        "inherited, and changed by what this file says of them.",
    )
    drop: tuple[str, ...] = Field(default=(), description="Ids of inherited criteria that are not judged.")
    criteria: tuple[CriterionPart, ...] = ()  # type: ignore[valid-type]
