"""Where weights lie, by name. Free of torch."""

from q36eval.errors import UsageError

DECODED, PACKED, LAYERS = "decoded", "packed", "layers"
PLACEMENTS = (DECODED, PACKED, LAYERS)
"""Decoded on the device; on the device as they are stored, decoded when used; or those of the layers in the files, to
be decoded one layer at a time by `LoadedModel.layers`. None changes a number."""


def check_placement(placement: str | None) -> None:
    """Refuse a place for weights that is not known.

    Raises:
        UsageError: it is none of `PLACEMENTS`.
    """
    if placement is not None and placement not in PLACEMENTS:
        raise UsageError("option-value", f"Weights lie {', '.join(PLACEMENTS)}, not {placement!r}.")
