"""What an inspection found: findings, coverage and error per class."""

from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from q36eval.records import Record

UNQUANTIZED = "unquantized"
"""How a weight is declared that is stored as numbers."""


class Severity(StrEnum):
    """Whether a finding blocks a release or is only shown."""

    BLOCKING = "blocking"
    ADVISORY = "advisory"


class Section(StrEnum):
    """Which question a rule answers; each one that could be asked gives a measurement, even when nothing was found."""

    INTEGRITY = "integrity"
    CONFIGURATION = "configuration"
    COVERAGE = "coverage"
    WEIGHTS = "weights"
    SERVABILITY = "servability"


OF_ITSELF = (Section.INTEGRITY, Section.COVERAGE, Section.SERVABILITY)
"""What is judged without a reference's weights."""


class Promise(Record):
    """How some tensors are stored, as a card says it.

    `tensors` is a class of tensor (`linear attention`), a glob of canonical names, or what is shipped beside the text
    model (`multi-token prediction`, `vision tower`); `stored` is `unquantized` or a scheme (`NVFP4`, `FP8`,
    `FP8_BLOCK`, `INT4`); `source` is the card.
    """

    tensors: str
    stored: str
    source: str


class Finding(Record):
    """One thing that is not as it should be. `subject` is the tensor or file it is about."""

    section: Section
    rule: str
    severity: Severity = Severity.BLOCKING
    subject: str
    message: str


def finding(section: Section, rule: str, subject: str, message: str, severity: Severity = Severity.BLOCKING) -> Finding:
    """A finding of that section; modules that report on one section name it once."""
    return Finding(section=section, rule=rule, severity=severity, subject=subject, message=message)


class CoverageRow(Record):
    """How one class of tensor is stored: `count` weights of `values` numbers in `stored_bytes`, scales included."""

    tensor_class: str
    declared: str
    stored: str
    count: int
    values: int
    stored_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per number, scales included."""
        return 8 * self.stored_bytes / self.values if self.values else 0.0


class ErrorRow(Record):
    """Error of one class and stored scheme against the reference.

    Relative error is |branch - reference| / |reference| (Frobenius); SQNR is -20 log10 of it, in decibels (infinite for
    an exact copy). `worst_bound_usage` is the largest share that the RMS error of a weight, a row or a group of
    values takes of what rounding to the grid can cost there at most; None where no bound is known.
    """

    tensor_class: str
    stored: str
    count: int
    median_relative_error: float
    median_sqnr_db: float
    worst: str
    worst_relative_error: float
    worst_sqnr_db: float
    worst_bound_usage: float | None


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first of these names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


class Inspection(Record):
    """Everything one inspection found. `measured` names the sections that could be judged; the others prove nothing."""

    checkpoint: str
    reference: str | None
    findings: tuple[Finding, ...]
    measured: tuple[Section, ...]
    coverage: tuple[CoverageRow, ...] = ()
    errors: tuple[ErrorRow, ...] = ()
    schemes: dict[str, int] | None = None
    """Quantized weights by scheme, none where nothing is quantized; None where that could not be told."""
    declared: dict[str, str] = Field(default_factory=dict)
    """The schemes that names and the model card declare, by where."""
    left_out: dict[str, int] = Field(default_factory=dict)
    compared_weights: int = 0
    unbounded_weights: int = 0

    @property
    def stored(self) -> dict[str, int]:
        """The size of all weights whose shape is known: their `bytes`, scales included, and `values`, the numbers."""
        rows = self.coverage
        return {"bytes": sum(row.stored_bytes for row in rows), "values": sum(row.values for row in rows)}

    @property
    def quantized_share(self) -> float | None:
        """The share of the parameters that are stored quantized; None where coverage is not known."""
        total = sum(row.values for row in self.coverage)
        return sum(row.values for row in self.coverage if row.declared != UNQUANTIZED) / total if total else None

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The findings that block a release."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.BLOCKING)

    def blocking_in(self, section: Section) -> tuple[Finding, ...]:
        """The blocking findings of one section."""
        return tuple(finding for finding in self.blocking if finding.section is section)
