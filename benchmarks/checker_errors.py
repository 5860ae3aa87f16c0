"""How well the checks read: hand-labelled answers, what a person says of each and what the checks say.

`python -m benchmarks.checker_errors [PART …]` prints a Markdown table a part, and with `--errors` every answer that is
read otherwise than its label says, by kind.
"""

import argparse
from collections import Counter

from q36eval.canaries.checks import Outcome
from tests.canaries.hand_labelled import PARTS, HandLabelled, hand_labelled


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--errors", action="store_true")
    arguments = parser.parse_args()
    print("| part | label | answers | read as right | wrong | unreadable |\n|---|---|---|---|---|---|")
    wrongly: list[tuple[HandLabelled, Outcome]] = []
    for part in arguments.parts:
        read = [(answer, answer.outcome()) for answer in hand_labelled((part,))]
        counts = Counter((answer.label, outcome) for answer, outcome in read)
        for label in Outcome:
            cells = [counts[label, outcome] for outcome in Outcome]
            print(f"| {part} | {label} | {sum(cells)} | {' | '.join(map(str, cells))} |")
        wrongly += [(answer, outcome) for answer, outcome in read if answer.label is not outcome]
    if arguments.errors:
        for answer, outcome in wrongly:
            print(f"\n## {answer.part} {answer.prompt.id} {answer.kind}: {answer.label}, read as {outcome}")
            print(answer.text)
            print(f"-- {answer.why}")
            for failure in answer.failures():
                print(f"-- {failure.code} at {failure.place}: {failure.message}")


if __name__ == "__main__":
    main()
