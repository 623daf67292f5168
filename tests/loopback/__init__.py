"""A loopback OpenAI-compatible server, so that tests speak through the real clients."""

from tests.loopback.judge_double import Rule
from tests.loopback.recording import recorded_line, replay, request_key
from tests.loopback.replies import (
    LETTER_ALONE,
    Answer,
    Raw,
    Reply,
    ReplyLike,
    answer,
    content_filter,
    context_length_exceeded,
    disconnect,
    error,
    hang,
    raw,
    refusal,
    truncated,
    with_letters,
    with_logprobs,
)
from tests.loopback.requests import ChatRequest
from tests.loopback.server import LoopbackServer
from tests.loopback.together import Together

__all__ = [
    "LETTER_ALONE",
    "Answer",
    "ChatRequest",
    "LoopbackServer",
    "Raw",
    "Reply",
    "ReplyLike",
    "Rule",
    "Together",
    "answer",
    "content_filter",
    "context_length_exceeded",
    "disconnect",
    "error",
    "hang",
    "raw",
    "recorded_line",
    "refusal",
    "replay",
    "request_key",
    "truncated",
    "with_letters",
    "with_logprobs",
]
