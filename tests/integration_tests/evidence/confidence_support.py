"""A judge that gives log-probabilities where it is asked for the value alone."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.loopback import ChatRequest, Reply, ReplyLike, with_logprobs
from tests.loopback.judge_double import JudgeDouble
from tests.loopback.replies import as_reply

RATIONALE = "It answers the question."


def is_alone(chat: ChatRequest) -> bool:
    """Whether a request is for the value alone."""
    return set((chat.schema or {}).get("properties", {})) == {"value"}


def is_verdict(chat: ChatRequest) -> bool:
    """Whether a request is for a verdict with its rationale."""
    return chat.schema_name == "judgment" and not is_alone(chat)


def alone(chats: Sequence[ChatRequest]) -> list[ChatRequest]:
    """The requests for the value alone."""
    return [chat for chat in chats if is_alone(chat)]


def verdicts(chats: Sequence[ChatRequest]) -> list[ChatRequest]:
    """The requests for a verdict."""
    return [chat for chat in chats if is_verdict(chat)]


def value_reply(odds: Mapping[Any, float], before: str = '{"value": ') -> Reply:
    """The likeliest value alone, with how likely each was."""
    written = {json.dumps(value, ensure_ascii=False): odd for value, odd in odds.items()}
    likeliest = max(written, key=lambda one: written[one])
    return with_logprobs(f"{before}{likeliest}}}", [before, (likeliest, written), "}"])


@dataclass
class TellingJudge:
    """Answers with verdicts in turn, and with odds where asked for the value alone."""

    odds: Callable[[ChatRequest], Mapping[Any, float] | ReplyLike]
    verdict: Any = True
    others: Callable[[ChatRequest], ReplyLike] = field(default_factory=JudgeDouble)

    def __call__(self, chat: ChatRequest) -> Reply:
        if is_alone(chat):
            told = self.odds(chat)
            is_odds = isinstance(told, dict) and "value" not in told
            return value_reply(told) if is_odds else as_reply(told)  # type: ignore[arg-type]
        if is_verdict(chat):
            said = self.verdict(chat) if callable(self.verdict) else self.verdict
            return as_reply({"rationale": RATIONALE, "value": said, "broken_guidelines": []})
        return as_reply(self.others(chat))


def telling(odds: Mapping[Any, float], *, verdict: Any = True) -> TellingJudge:
    """A judge that is always as sure."""
    return TellingJudge(lambda _: dict(odds), verdict)
