"""How likely a chat model held each permitted value, read from its tokens' log-probabilities.

A value may be written in several tokens, and two values may begin alike. So the values are followed
from token to token: where the alternatives of a token tell some values from the others, the
probability is divided among them, renormalised over the permitted values alone. What a server's
grammar forbade, and whatever else the model might have written, does not count.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memalign_graph.judgment import Probabilities
from memalign_graph.scales import Boolean, Categorical, Numeric, Pairwise, Scale, Value

MAX_VALUES = 20
"""The most values a scale may have: servers give the log-probabilities of that many alternatives
at most."""

_VALUE = re.compile(r'"value"\s*:\s*')
"""What stands before the value in an answer."""


@dataclass(frozen=True)
class Token:
    """A token of an answer, and what might have stood in its place."""

    text: str
    """The token."""

    alternatives: Mapping[str, float]
    """Log-probabilities by text, the token's own among them."""


def permitted_values(scale: Scale) -> list[Value] | None:
    """Return the values of a finite scale.

    Args:
        scale: The scale.

    Returns:
        Its values in order; None if there are more than `MAX_VALUES`, or they are continuous.
    """
    match scale:
        case Boolean():
            return [True, False]
        case Categorical() | Pairwise():
            return list(scale.choices) if len(scale.choices) <= MAX_VALUES else None
        case Numeric(integer=True):
            low, high = int(scale.minimum), int(scale.maximum)
            return list(range(low, high + 1)) if high - low < MAX_VALUES else None
        case _:
            return None


def read_tokens(logprobs: Any) -> list[Token]:
    """Read the log-probabilities of an OpenAI-compatible answer.

    Args:
        logprobs: What stands in a message's `response_metadata["logprobs"]`.

    Returns:
        The answer's tokens; none if it has no log-probabilities.
    """
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    tokens = []
    for one in content or []:
        alternatives: dict[str, float] = {}
        for other in [*(one.get("top_logprobs") or []), one]:
            text, log = other.get("token"), other.get("logprob")
            if isinstance(text, str) and isinstance(log, int | float) and not math.isnan(log):
                alternatives[text] = max(alternatives.get(text, -math.inf), float(log))
        tokens.append(Token(str(one.get("token", "")), alternatives))
    return tokens


def value_probabilities(tokens: Sequence[Token], scale: Scale) -> Probabilities | None:
    """Tell how likely the model held each value, where it wrote the value.

    Args:
        tokens: The tokens of an answer, a JSON object that has `"value"`.
        scale: The criterion's scale.

    Returns:
        A probability for each permitted value, by the value as the scale renders it; they sum to 1.
        None if the scale is not finite, the answer has no value, or a permitted value is missing
        among the alternatives where it differs from the others.
    """
    values = permitted_values(scale)
    found = list(_VALUE.finditer("".join(one.text for one in tokens)))
    if values is None or not found:
        return None
    written = {scale.render(value): json.dumps(value, ensure_ascii=False) for value in values}
    start = found[-1].end()
    shares = dict.fromkeys(written, 0.0)
    live, mass, before, offset = set(written), 1.0, "", 0
    for token in tokens:
        lead = max(start - offset, 0)
        offset += len(token.text)
        own = before + token.text[lead:]
        if not own.strip():
            continue
        chosen = {name for name in live if _fits(own, written[name])}
        if chosen != live:
            groups = _divide(token, token.text[:lead], before, {one: written[one] for one in live})
            if not chosen or groups is None:
                return None
            mass = _settle(groups, chosen, mass, shares)
            live = chosen
            if len(live) == 1:
                shares[next(iter(live))] += mass
                return shares
        before = own
    return None


def _divide(
    token: Token, lead: str, before: str, live: Mapping[str, str]
) -> dict[frozenset[str], float] | None:
    """Divide a token's alternatives by the values that each leaves possible.

    Returns:
        The probability of each set of values, renormalised; None if a value is in no set.
    """
    groups: dict[frozenset[str], float] = {}
    for text, log in token.alternatives.items():
        # One may end what comes before the value otherwise, such as without the blank.
        rest = text[len(lead) :] if text.startswith(lead) else text.lstrip(" :\n")
        fits = frozenset(name for name, one in live.items() if _fits(before + rest, one))
        # What leaves all values possible tells none from another.
        if fits and len(fits) < len(live):
            groups[fits] = groups.get(fits, 0.0) + math.exp(log)
    total = sum(groups.values())
    if not total or set().union(*groups) != set(live):
        return None
    return {names: share / total for names, share in groups.items()}


def _settle(
    groups: Mapping[frozenset[str], float], chosen: set[str], mass: float, shares: dict[str, float]
) -> float:
    """Give the values that what was written rules out their shares.

    Returns:
        The probability that is left to the others.
    """
    left = 0.0
    for names, share in groups.items():
        if names & chosen:
            left += mass * share
            continue
        for name in names:
            shares[name] += mass * share / len(names)
    return left


def _fits(text: str, written: str) -> bool:
    """Tell whether a text begins a value as it is written, or is the value and goes on after it."""
    text = text.lstrip()
    if len(text) <= len(written):
        return written.startswith(text)
    if not text.startswith(written):
        return False
    # "1" does not go on as "10" or "1.5" does.
    return written.endswith('"') or not (text[len(written)].isalnum() or text[len(written)] in "._")
