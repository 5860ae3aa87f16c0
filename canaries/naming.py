"""What a question is called in the evidence."""

from q36eval.records import ItemOutcome

KEY_CHARACTERS = 8


def question_name(outcome: ItemOutcome) -> str:
    """`CANARY/QUESTION#CONTENT`: by the first part a waiver finds its canary, by all of it two runs pair.

    The content is the beginning of the item's key, a hash of what was asked and of how it is judged: a question that
    was reworded is another one, whatever its number.
    """
    return f"{outcome.cluster}#{outcome.item_key[:KEY_CHARACTERS]}"
