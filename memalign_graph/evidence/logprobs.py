"""How likely a chat model held each permitted value, read from its tokens' log-probabilities.

A value may be written in several tokens, and two values may begin alike. So the values are followed
from token to token: where the alternatives of a token tell some values from the others, the
probability is divided among them, renormalised over the permitted values alone. What a server's
grammar forbade, and whatever else the model might have written, does not count.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memalign_graph.scales import Boolean, Categorical, Numeric, Pairwise, Scale, Value
from memalign_graph.types import Probabilities

MAX_VALUES = 20
"""The most values a scale may have: servers give the log-probabilities of that many alternatives
at most."""

_LEXEME = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
"""What tells where in an answer one is: texts, and what opens and closes."""

_COLON = re.compile(rb"\s*:\s*")

_BLANKS = b" \t\r\n"

_ENDS = _BLANKS + b",}"
"""What may stand after a number or a truth value."""

_LEAST = -9999.0
"""The log-probability of what has none."""


@dataclass(frozen=True)
class Token:
    """A token of an answer, and what might have stood in its place."""

    text: bytes
    """The token: in bytes, since a token may end within a character."""

    alternatives: Mapping[bytes, float]
    """Log-probabilities by text, the token's own among them."""


def permitted_values(scale: Scale) -> list[Value] | None:
    """Return the values of a finite scale."""
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
    """Read the log-probabilities of an OpenAI-compatible answer."""
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    tokens = []
    for one in _entries(content):
        alternatives: dict[bytes, float] = {}
        for other in [*_entries(one.get("top_logprobs")), one]:
            text, log = _text(other), other.get("logprob")
            if not text or not isinstance(log, int | float):
                continue
            inside = float(max(min(log, 0.0), _LEAST))
            if not math.isnan(inside):
                alternatives[text] = max(alternatives.get(text, _LEAST), inside)
        tokens.append(Token(_text(one), alternatives))
    return tokens


def _entries(given: Any) -> list[Mapping[str, Any]]:
    return [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []


def _text(entry: Mapping[str, Any]) -> bytes:
    """Return a token's bytes; its text is no use where a token ends within a character."""
    raw, text = entry.get("bytes"), entry.get("token")
    if isinstance(raw, list) and raw and all(type(one) is int and 0 <= one <= 255 for one in raw):  # noqa: PLR2004 - bytes
        return bytes(raw)
    return text.encode(errors="replace") if isinstance(text, str) else b""


def value_probabilities(tokens: Sequence[Token], scale: Scale) -> Probabilities | None:
    """Tell how likely the model held each value, where it wrote the value."""
    values = permitted_values(scale)
    start = _value_start(b"".join(one.text for one in tokens))
    if values is None or start is None:
        return None
    live = {scale.render(one): json.dumps(one, ensure_ascii=False).encode() for one in values}
    shares = dict.fromkeys(live, 0.0)
    mass, before, offset = 1.0, b"", 0
    for token in tokens:
        lead = token.text[: max(start - offset, 0)]
        offset += len(token.text)
        own = (before + token.text[len(lead) :]).lstrip(_BLANKS)
        if not own:
            continue
        odds = _odds_by_text(token, lead, before)
        fits = _readings({own, *odds}, own, live)
        chosen = fits[own]
        if chosen != live.keys():
            groups = _divide(odds, fits, live)
            if not chosen or groups is None:
                return None
            mass = _settle(groups, chosen, mass, shares)
            live = {name: live[name] for name in live if name in chosen}
            if len(live) == 1:
                shares[next(iter(live))] += mass
                return shares
        before = own
    return None


def _value_start(text: bytes) -> int | None:
    """Find where in an answer the value begins: of the object itself, not of one within it."""
    start, depth = None, 0
    for found in _LEXEME.finditer(text):
        if found[0] in (b"{", b"["):
            depth += 1
        elif found[0] in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and found[0] == b'"value"':
            colon = _COLON.match(text, found.end())
            start = colon.end() if colon else start
    return start


def _odds_by_text(token: Token, lead: bytes, before: bytes) -> dict[bytes, float]:
    """Return the probability of each text that the value may have begun with so far."""
    odds: dict[bytes, float] = {}
    for text, log in token.alternatives.items():
        # One may end what comes before the value otherwise, such as without the blank.
        rest = text[len(lead) :] if text.startswith(lead) else text.lstrip(_BLANKS + b":")
        whole = (before + rest).lstrip(_BLANKS)
        odds[whole] = odds.get(whole, 0.0) + math.exp(log)
    return odds


def _readings(
    texts: Iterable[bytes], own: bytes, live: Mapping[str, bytes]
) -> dict[bytes, frozenset[str]]:
    """Tell which values each text leaves possible."""
    fits = {one: frozenset(name for name in live if _fits(one, live[name])) for one in texts}
    numbers = {one: name for name, one in live.items() if one[-1:].isdigit()}
    read = dict(fits)
    for text, names in fits.items():
        for longer, others in fits.items():
            if longer == text or not text or not longer.startswith(text):
                continue
            if text in numbers:
                names -= others - {numbers[text]}  # noqa: PLW2901 - what is left of them
            elif longer == own:
                names = names - others or names  # noqa: PLW2901 - likewise
        read[text] = names
    return read


def _divide(
    odds: Mapping[bytes, float], fits: Mapping[bytes, frozenset[str]], live: Mapping[str, bytes]
) -> dict[frozenset[str], float] | None:
    """Divide a token's alternatives by the values that each leaves possible."""
    groups: dict[frozenset[str], float] = {}
    for text, names in fits.items():
        # What leaves all values possible tells none from another.
        if text in odds and names and len(names) < len(live):
            groups[names] = groups.get(names, 0.0) + odds[text]
    total = sum(groups.values())
    if not total or set().union(*groups) != live.keys():
        return None
    return {names: share / total for names, share in groups.items()}


def _settle(
    groups: Mapping[frozenset[str], float],
    chosen: frozenset[str],
    mass: float,
    shares: dict[str, float],
) -> float:
    """Give the values that what was written rules out their shares."""
    left = 0.0
    for names, share in groups.items():
        if names & chosen:
            left += mass * share
            continue
        for name in names:
            shares[name] += mass * share / len(names)
    return left


def _fits(text: bytes, written: bytes) -> bool:
    """Tell whether a text begins a value as it is written, or is the value and goes on after it."""
    if len(text) <= len(written):
        return written.startswith(text)
    if not text.startswith(written):
        return False
    # A number or truth value ends where JSON goes on: "1" is not what "10" and "1.5" begin with.
    return written.endswith(b'"') or text[len(written)] in _ENDS
