"""Answers as tokens with log-probabilities, as a model with some vocabulary would write them."""

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from memalign_graph import Boolean, Categorical, Numeric, Pairwise
from memalign_graph.evidence.logprobs import permitted_values, read_tokens, value_probabilities
from memalign_graph.scales import Scale
from memalign_graph.types import Probabilities

LABELS = Categorical(choices=("full_compliance", "full_refusal", "partial_refusal"))
NESTED = Categorical(choices=("good", "good enough", "goodness", "bad"))
ODD = Categorical(choices=('say "hi"', "grün", "größer", "a b", "日本", "日曜", "back\\slash"))
STARS = Numeric(minimum=1, maximum=5, integer=True)
DOZEN = Numeric(minimum=1, maximum=12, integer=True)
SIGNED = Numeric(minimum=-2, maximum=2, integer=True)
SCALES: dict[str, Scale] = {
    "boolean": Boolean(),
    "labels": LABELS,
    "nested": NESTED,
    "odd": ODD,
    "stars": STARS,
    "dozen": DOZEN,
    "signed": SIGNED,
    "pairwise": Pairwise(),
    "no tie": Pairwise(allow_tie=False),
}

_WORD = re.compile(r"\d+| ?[^\W\d]+| ?[^\w\s]+|\s+")

Odds = Mapping[str, float]
Step = str | tuple[str, Odds]


def entry(token: str | bytes, probability: float, *, in_bytes: bool = True) -> dict[str, Any]:
    """A token's log-probability, as OpenAI writes it."""
    raw = token if isinstance(token, bytes) else token.encode()
    log = math.log(probability) if probability > 0 else -9999.0
    text = raw.decode(errors="replace")
    return {"token": text, "logprob": log, "bytes": list(raw) if in_bytes else None}


def logprobs(steps: Sequence[Step], *, in_bytes: bool = True) -> dict[str, Any]:
    """Tokens, certain or with their alternatives, as an answer's `logprobs`."""
    content = []
    for step in steps:
        token, odds = (step, {step: 1.0}) if isinstance(step, str) else step
        one = entry(token, odds.get(token, 0.0), in_bytes=in_bytes)
        others = [entry(text, odd, in_bytes=in_bytes) for text, odd in odds.items()]
        content.append({**one, "top_logprobs": others})
    return {"content": content, "refusal": None}


def read(steps: Sequence[Step], scale: Scale, **options: Any) -> Probabilities | None:
    """What is read from such an answer."""
    return value_probabilities(read_tokens(logprobs(steps, **options)), scale)


def written(scale: Scale) -> dict[str, str]:
    """The permitted values as JSON, by name."""
    values = permitted_values(scale) or []
    return {scale.render(one): json.dumps(one, ensure_ascii=False) for one in values}


class Writer:
    """A model that writes each of some texts with a probability, in the longest tokens it has.

    As in real vocabularies no token goes on from a word into what is no word.
    """

    def __init__(self, texts: Mapping[str, str], odds: Odds, rng: random.Random) -> None:
        self._odds = odds
        self._rng = rng
        words = {word.encode() for text in texts.values() for word in _WORD.findall(text)}
        pieces = {word[at : at + 1] for word in words for at in range(len(word))}
        pieces |= {word[:2] for word in words if word.startswith(b" ")}
        for word in sorted(words) * 2:
            start = rng.randrange(len(word))
            pieces.add(word[start : start + rng.randint(1, 9)])
        self._pieces = sorted(pieces, key=lambda one: (-len(one), one))
        self._tokens = {name: self._split(text) for name, text in texts.items()}

    def _split(self, text: str) -> list[bytes]:
        tokens = []
        for word in _WORD.findall(text):
            rest = word.encode()
            while rest:
                tokens.append(next(one for one in self._pieces if rest.startswith(one)))
                rest = rest[len(tokens[-1]) :]
        return tokens

    def write(self, name: str) -> dict[str, Any]:
        """One of the texts, with what might have stood in the place of each token."""
        content: list[dict[str, Any]] = []
        alike = dict(self._odds)
        for at, token in enumerate(self._tokens[name]):
            total = sum(alike.values())
            odds: dict[bytes, float] = {}
            for other, odd in alike.items():
                following = self._tokens[other][at] if at < len(self._tokens[other]) else b"<end>"
                odds[following] = odds.get(following, 0.0) + odd / total
            share = self._rng.uniform(0.1, 1)  # the rest goes to what no value begins with
            others = [entry(text, odd * share) for text, odd in odds.items()]
            others += [entry(text, (1 - share) / 2) for text in ("?!", "maybe")]
            self._rng.shuffle(others)
            content.append({**entry(token, odds[token] * share), "top_logprobs": others})
            alike = {one: odd for one, odd in alike.items() if self._takes(one, at, token)}
        return {"content": content}

    def _takes(self, name: str, at: int, token: bytes) -> bool:
        tokens = self._tokens[name]
        return at < len(tokens) and tokens[at] == token
