"""The server's acceptance of its draft tokens (MTP, speculative decoding), from its own counters.

Draft tokens of one answer are not independent: some texts are easier to predict. So each prompt is sent alone, its
drafts are the increase of the counters, and the prompt is the cluster of the interval. Under load the counters give
only a total, which is reported separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from q36eval.engines.openai.endpoint import DraftCounts, Endpoint, fresh_salt
from q36eval.metrics import metric_of
from q36eval.records import Clusters, Measurement, ProbeName
from q36eval.served.comparison import sentences
from q36eval.served.differentials import asked
from q36eval.served.prompts import Prompt


@dataclass(frozen=True)
class Drafted:
    """The drafts of one prompt; a text instead is the reason for missing counts."""

    prompt: str
    counts: "DraftCounts | str"


def drafted(endpoint: Endpoint, prompts: Sequence[Prompt]) -> list[Drafted]:
    """Each prompt sent alone, with the increase of the counters."""
    return [Drafted(prompt.name, _drafted(endpoint, prompt)) for prompt in prompts]


def _drafted(endpoint: Endpoint, prompt: Prompt) -> "DraftCounts | str":
    before = endpoint.draft_counts()
    answer = asked(lambda: endpoint.complete(prompt.token_ids, prompt.budget, salt=fresh_salt()))
    after = endpoint.draft_counts()
    if isinstance(answer, str):
        return answer
    if before is None or after is None:
        return "the server did not report its draft counters"
    rose = after.since(before)
    if rose.drafts > prompt.budget:  # each draft yields at least one token
        return "other clients used the server meanwhile, so its counters do not show this prompt's drafts"
    return rose if 0 <= rose.accepted <= rose.drafted else "the server's counters of drafts contradict themselves"


def rejected_measured(rows: Sequence[Drafted], under_load: DraftCounts | None) -> Measurement:
    """The share of draft tokens that were rejected; the clusters are the prompts."""
    known = [row.counts for row in rows if isinstance(row.counts, DraftCounts)]
    clusters = Clusters(
        units=tuple(row.counts.drafted if isinstance(row.counts, DraftCounts) else 0 for row in rows),
        branch=tuple(float(row.counts.rejected) if isinstance(row.counts, DraftCounts) else 0.0 for row in rows),
        errored=tuple(int(isinstance(row.counts, str)) for row in rows),
        names=tuple(row.prompt for row in rows),
    )
    metric = metric_of(ProbeName.SERVED, "rejected_drafts")
    total = sum(known, DraftCounts())
    return metric.summarized(
        clusters,
        note=sentences(
            f"{_share(total)} of {len(known)} prompts asked alone",
            f"{_share(under_load)} under mixed load" if under_load is not None else "",
            *sorted({row.counts for row in rows if isinstance(row.counts, str)})[:1],
        ),
    )


def _share(counts: DraftCounts) -> str:
    if not counts.drafted:
        return "nothing was drafted"
    return f"{counts.accepted:,} of {counts.drafted:,} draft tokens accepted ({counts.accepted / counts.drafted:.1%})"
