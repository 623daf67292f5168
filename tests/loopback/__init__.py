"""A loopback OpenAI-compatible server, so that tests speak through the real clients."""

from tests.loopback.judge_double import JudgeDouble, Rule
from tests.loopback.replies import (
    LETTER_ALONE,
    Answer,
    Disconnect,
    Fault,
    Hang,
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
from tests.loopback.requests import ChatRequest, EmbeddingRequest
from tests.loopback.server import LoopbackServer, Responder
from tests.loopback.together import Together

__all__ = [
    "LETTER_ALONE",
    "Answer",
    "ChatRequest",
    "Disconnect",
    "EmbeddingRequest",
    "Fault",
    "Hang",
    "JudgeDouble",
    "LoopbackServer",
    "Raw",
    "Reply",
    "ReplyLike",
    "Responder",
    "Rule",
    "Together",
    "answer",
    "content_filter",
    "context_length_exceeded",
    "disconnect",
    "error",
    "hang",
    "raw",
    "refusal",
    "truncated",
    "with_letters",
    "with_logprobs",
]
