"""RULER's scoring: the share of the expected strings that occur in the answer, whatever their case.

As `string_match_all` of Hsieh et al. 2024 (arXiv 2404.06654). lm-eval's own copy lies beside code that downloads.
"""

from typing import Any


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The score of one document, from 0 to 1."""
    answer = results[0].lower()
    outputs: list[str] = doc["outputs"]
    return {"string_match_all": sum(output.lower() in answer for output in outputs) / len(outputs)}
