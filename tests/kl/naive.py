"""The figures by their definitions, in Python floats and loops."""

import math

Row = list[float]


def probabilities(logits: Row) -> Row:
    largest = max(logits)
    weights = [math.exp(value - largest) for value in logits]
    return [weight / math.fsum(weights) for weight in weights]


def log_probability(logits: Row, token: int) -> float:
    largest = max(logits)
    return logits[token] - largest - math.log(math.fsum(math.exp(value - largest) for value in logits))


def kl(logits_p: Row, logits_q: Row) -> float:
    """KL(p || q) with 0 log 0 = 0; infinite where q holds impossible what p does not."""
    terms = []
    for token, p in enumerate(probabilities(logits_p)):
        if logits_p[token] == -math.inf:
            continue
        if logits_q[token] == -math.inf:
            return math.inf
        terms.append(p * (log_probability(logits_p, token) - log_probability(logits_q, token)))
    return math.fsum(terms)


def figures(logits_p: Row, logits_q: Row, label: int) -> dict[str, float]:
    """Every column of `TokenFigures`, of one token."""
    top = logits_p.index(max(logits_p))
    rank = sum(value > logits_q[top] for value in logits_q)
    possible = [token for token, value in enumerate(logits_p) if value > -math.inf]
    p = probabilities(logits_p)
    return {
        "forward_kl": kl(logits_p, logits_q),
        "reverse_kl": kl(logits_q, logits_p),
        "reference_entropy": math.fsum(-p[token] * log_probability(logits_p, token) for token in possible),
        "reference_logprob": log_probability(logits_p, label),
        "branch_logprob": log_probability(logits_q, label),
        "top1_agrees": float(rank == 0),
        "top1_rank": float(rank),
    }
