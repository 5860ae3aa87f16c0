"""Which of several branches is fit for which lane: a pure function of their reports and sizes."""

from collections.abc import Sequence

from q36eval.gate import CriterionVerdict, GateReport, LaneResult
from q36eval.records import Lane, Record, Verdict

MIB = 1024 * 1024


class Candidate(Record):
    """One branch that was to be judged: its report, or why there is none; `size_bytes` as it lies on the disk.

    `code` names the kind of the `problem`. `unsigned` where a sign-off was required and there is none. The report of
    what fails as a whole does not say so, and a lane of it may have passed.
    """

    branch: str
    run_id: str | None = None
    report: GateReport | None = None
    problem: str | None = None
    code: str | None = None
    exit_code: int
    size_bytes: int | None = None
    unsigned: bool = False


class Fit(Record):
    """A branch that a lane may use. `waived` are the criteria that it passes by waivers only."""

    branch: str
    size_bytes: int | None
    waived: tuple[str, ...] = ()


class Unfit(Record):
    """A branch that a lane may not use, and why in words."""

    branch: str
    why: str


class LaneChoice(Record):
    """The fit branches of one lane, smallest first (those of unknown size last), and the others as they were named."""

    lane: Lane
    fit: tuple[Fit, ...]
    unfit: tuple[Unfit, ...]


class Recommendation(Record):
    """Every lane that any of the branches was judged for, in the order of `Lane`, and what was not judged at all."""

    lanes: tuple[LaneChoice, ...]
    not_judged: tuple[Unfit, ...] = ()


def recommend(candidates: Sequence[Candidate]) -> Recommendation:
    """Which branch is fit for which lane.

    Fit is what passes in that lane, waivers included, and is not waiting for a signature. Among the fit the smallest
    comes first: quality is what the margins ask for, and beyond them size is what a branch is made for.
    """
    judged = {lane.lane for candidate in candidates for lane in _lanes(candidate)}
    return Recommendation(
        lanes=tuple(_choice(lane, candidates) for lane in Lane if lane in judged),
        not_judged=tuple(Unfit(branch=c.branch, why=c.problem or "") for c in candidates if c.report is None),
    )


def _lanes(candidate: Candidate) -> tuple[LaneResult, ...]:
    return () if candidate.report is None else candidate.report.lanes


def _choice(lane: Lane, candidates: Sequence[Candidate]) -> LaneChoice:
    fit, unfit = [], []
    for candidate in candidates:
        result = next((each for each in _lanes(candidate) if each.lane is lane), None)
        why = _why_not(candidate, result)
        if result is None or why is not None:
            unfit.append(Unfit(branch=candidate.branch, why=why or ""))
        else:
            fit.append(Fit(branch=candidate.branch, size_bytes=candidate.size_bytes, waived=result.waived))
    by_size = sorted(fit, key=lambda entry: (entry.size_bytes is None, entry.size_bytes or 0, entry.branch))
    return LaneChoice(lane=lane, fit=tuple(by_size), unfit=tuple(unfit))


def _why_not(candidate: Candidate, result: LaneResult | None) -> str | None:
    """Why a branch is not fit for the lane; None when it is."""
    report = candidate.report
    if report is None:
        return "not judged"
    if result is None:
        return f"policy {report.policy} does not judge this lane"
    if result.verdict is not Verdict.PASS:
        return f"{_headline(report, result)}: {', '.join(result.decisive)}" if result.decisive else result.headline
    return "awaits a sign-off" if report.awaiting_sign_off or candidate.unsigned else None


def _headline(report: GateReport, result: LaneResult) -> str:
    """The lane's own, and of an INCONCLUSIVE whether what decided it was not even measured."""
    deciding = [criterion for criterion in report.criteria if criterion.id in result.decisive]
    unmeasured = deciding and all(one.verdict is CriterionVerdict.NOT_MEASURED for one in deciding)
    return f"{result.headline}, not measured" if unmeasured else result.headline


def sentences(recommendation: Recommendation) -> list[str]:
    """One sentence a lane on what is fit for it, and one for every branch that is not; what was not judged, last."""
    lines = []
    for choice in recommendation.lanes:
        lines.append(f"{choice.lane.value}: {_fit_words(choice.fit)}")
        lines += [f"  not {entry.branch}: {entry.why}" for entry in choice.unfit]
    lines += [f"{entry.branch} was not judged: {entry.why}" for entry in recommendation.not_judged]
    return lines


def _fit_words(fit: Sequence[Fit]) -> str:
    if not fit:
        return "none of these branches is fit"
    rest = ", ".join(map(_name, fit[1:]))
    return f"{_name(fit[0])}, the smallest that is fit; also {rest}" if rest else f"only {_name(fit[0])} is fit"


def _name(fit: Fit) -> str:
    about = [size_words(fit.size_bytes)] if fit.size_bytes is not None else []
    about += [f"with waivers of {', '.join(fit.waived)}"] if fit.waived else []
    return f"{fit.branch} ({'; '.join(about)})" if about else fit.branch


def size_words(size_bytes: int | None) -> str:
    """A size in MiB or GiB; a dash where it is not known."""
    if size_bytes is None:
        return "–"
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes < 1024 * MIB else f"{size_bytes / MIB / 1024:.1f} GiB"
