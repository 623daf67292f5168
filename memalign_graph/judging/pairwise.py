"""Judge two outputs in both orders.

Judges prefer what they read first. Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot
Arena" (2023), section 3.4, https://arxiv.org/abs/2306.05685, propose to swap the outputs.
"""

from memalign_graph.errors import InvalidInputError
from memalign_graph.scales import Pairwise, Value
from memalign_graph.types import Example


def swap_outputs(example: Example) -> Example:
    """Return the example with its two outputs swapped.

    Raises:
        InvalidInputError: There are not two outputs.
    """
    match example.outputs:
        case [first, second]:
            return Example(**{**example.to_json(), "outputs": [second, first]})
        case dict() as named if len(named) == 2:  # noqa: PLR2004 - a pair
            swapped = dict(zip(named, reversed(named.values()), strict=True))
            return Example(**{**example.to_json(), "outputs": swapped})
    raise InvalidInputError(
        "outputs: to be judged in both orders (`swap=True`) they have to be two: give a list of "
        "the two outputs, or an object with two fields, such as {'A': ..., 'B': ...}."
    )


def reconcile_orders(
    scale: Pairwise, straight: tuple[Value, str], swapped: tuple[Value, str]
) -> tuple[Value, str, str | None]:
    """Return value, rationale and warning; if the verdicts differ, a tie where allowed."""
    value, rationale = straight
    other = {"A": "B", "B": "A"}.get(str(swapped[0]), swapped[0])
    if value == other:
        return value, rationale, None
    tie = "so that it is a tie" if scale.allow_tie else "and the scale has no tie: the first stands"
    both = (
        f"In the order given ({value}): {rationale} With A and B in each other's place, and named "
        f"so ({other} as given): {swapped[1]}"
    )
    warning = (
        f"The verdict depends on the order of the outputs: {value} as they were given, {other} "
        f"when they were swapped, {tie}."
    )
    return "tie" if scale.allow_tie else value, both, warning
