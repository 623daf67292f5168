"""A judge that gives log-probabilities where it is asked for the value alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.loopback import LETTER_ALONE, ChatRequest, Reply, ReplyLike, with_letters
from tests.loopback.judge_double import JudgeDouble
from tests.loopback.replies import as_reply

RATIONALE = "It answers the question."


def is_alone(chat: ChatRequest) -> bool:
    """Whether a request is for the value alone."""
    return chat.schema is None and LETTER_ALONE in chat.text


def alone(chats: Sequence[ChatRequest]) -> list[ChatRequest]:
    """The requests for the value alone."""
    return [chat for chat in chats if is_alone(chat)]


def verdicts(chats: Sequence[ChatRequest]) -> list[ChatRequest]:
    """The requests for a verdict."""
    return [chat for chat in chats if chat.schema_name == "judgment"]


def value_reply(chat: ChatRequest, odds: Mapping[Any, float]) -> Reply:
    """The likeliest value alone, with how likely each was."""
    names = {value: str(value).lower() if isinstance(value, bool) else str(value) for value in odds}
    return with_letters(chat.text, {names[value]: odd for value, odd in odds.items()})


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
            return value_reply(chat, told) if is_odds else as_reply(told)  # type: ignore[arg-type] # as is_odds tells
        if chat.schema_name == "judgment":
            said = self.verdict(chat) if callable(self.verdict) else self.verdict
            return as_reply({"rationale": RATIONALE, "value": said, "broken_guidelines": []})
        return as_reply(self.others(chat))


def telling(odds: Mapping[Any, float], *, verdict: Any = True) -> TellingJudge:
    """A judge that is always as sure."""
    return TellingJudge(lambda _: dict(odds), verdict)
