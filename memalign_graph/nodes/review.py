"""Nodes that decide whether an expert is asked, ask, and read the reply as feedback."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from memalign_graph.errors import InvalidInputError
from memalign_graph.interrupts import parse_review, review_form
from memalign_graph.judging.case import Retrieved
from memalign_graph.memory.feedback import date_after_known
from memalign_graph.memory.index import decode_vector
from memalign_graph.memory.judgments import (
    count_asked,
    find_judgment,
    keep_judgment,
    log_review,
    utc_now,
)
from memalign_graph.runtime import (
    NodeCall,
    StateUpdate,
    is_resuming,
    missing_channel,
    require_channel,
    signed_in,
)
from memalign_graph.settings import Uncertain
from memalign_graph.tracing import emit_evaluation
from memalign_graph.types import Example, Feedback, Judgment, ReviewReason

_SETTLE_S = 0.05
"""How long a log entry that is dated earlier may take to be written."""


async def decide_review(
    call: NodeCall, *, forced: Sequence[ReviewReason] | None = None
) -> StateUpdate:
    """Decide whether an expert is asked, and keep the judgment.

    For a tool call, `forced` has the reasons to ask that do not depend on the verdict. For other
    cases it is None.
    """
    from memalign_graph.evidence.deciding import make_review_choice

    io, access, judge = call.io, call.access, call.judge
    judgment, review = call.judgment, call.resources.review
    # If only the run's context asks for it, the defaults apply.
    uncertain = review if isinstance(review, Uncertain) else Uncertain()
    vector = require_channel(call.state, "judge_memory").get("vector")
    choice = await make_review_choice(
        io,
        access,
        judgment,
        uncertain=uncertain,
        decide=judge.mode,
        vector=access.load_vector(vector),
        has_neighbors=call.finds_similar,
    )
    if forced:
        choice = choice.model_copy(update={"asks": True, "reasons": [*forced, *choice.reasons]})
    at = utc_now()
    await log_review(io, access, judgment, choice, at)
    limit = None if forced else uncertain.per_day
    if choice.asks and limit is not None:
        # Counted after it is logged, so that judgments made at the same time count each other.
        await io.call_either(partial(time.sleep, _SETTLE_S), partial(asyncio.sleep, _SETTLE_S))
        asked = await count_asked(io, access, at, except_id=judgment.id)
        if asked >= limit:
            reasons = [*choice.reasons, "no_budget"]
            choice = choice.model_copy(update={"asks": False, "reasons": reasons})
            await log_review(io, access, judgment, choice, at)
    emit_evaluation(judgment, asked=choice.asks)
    decided = judgment.model_copy(update={"review": choice})
    # A kept choice not to ask says that the call ran, so only calls have one.
    shown = decided if choice.asks or forced is not None else judgment
    kept = await keep_judgment(io, access, shown, call.example, vector, judge.keep_judgments)
    return {"judgment": kept.model_copy(update={"review": choice}).to_json()}


async def collect_feedback(call: NodeCall) -> StateUpdate:
    """Ask the expert about the judgment; with the reply this node runs again from its start."""
    call.warn_without_checkpointer("review")
    for name in ("feedback", "judge_lesson"):
        # A checkpoint of an earlier release has no `judge_lesson`.
        if name not in call.state and not is_resuming():
            raise missing_channel(name)
    example, judgment = call.example, call.judgment
    # What may fail comes before the question: a node that fails after it keeps the first reply.
    _check_criterion(call, judgment)
    await call.access.refresh(call.io)
    saved_memory = require_channel(call.state, "judge_memory")
    memory = await Retrieved.load(call.io, call.access, saved_memory)
    episodes = [episode for similar in memory.recalled for episode in similar.episodes]
    was_shown = is_resuming()
    fields = review_form(
        call.resources.criterion,
        example,
        judgment,
        guidelines=memory.guidelines_by_ids(judgment.guideline_ids),
        episodes=[episode for episode in episodes if episode.id in judgment.episode_ids],
        was_shown=was_shown,
    ).ask(call.settings["namespace"])
    feedback = make_feedback(call, fields, example, judgment if was_shown else None)
    return {"feedback": feedback, "judge_lesson": {}}


async def find_the_judgment(call: NodeCall) -> StateUpdate:
    kept = await find_judgment(call.io, call.access, call.state.get("judgment_id", ""))
    await call.access.refresh(call.io)
    try:
        fields = parse_review(call.state.get("reply"), call.resources.criterion, kept.judgment)
    except ValueError as error:
        raise InvalidInputError(f"reply: {error}") from error
    vector = None
    if kept.vector and kept.embedder == call.access.embedder.id:
        vector = call.access.dump_vector(decode_vector(kept.vector))
    return {
        "judge_run": {"example": kept.example.to_json(), "settings": call.settings},
        "judge_memory": Retrieved(version=kept.judgment.memory_version, vector=vector).to_json(),
        "judge_lesson": {},
        "judgment": kept.judgment.to_json(),
        "feedback": make_feedback(call, fields, kept.example, kept.judgment),
        "learned": None,
    }


def make_feedback(
    call: NodeCall, fields: dict[str, Any] | None, example: Example, judgment: Judgment | None
) -> dict[str, Any] | None:
    """Return feedback as JSON, dated by the memory as last refreshed.

    A reply that names its date was stored before. If the expert has taken it back since, it is
    None; what the expert has said since stays newer.
    """
    if fields is None:
        return None
    if "id" not in fields:  # an id distinguishes experts without names
        fields = {"author": signed_in(call.runtime), **fields}
    undated = Feedback(example=example, judgment=judgment, thread_id=call.thread_id, **fields)
    if undated.judgment is not None:
        _check_criterion(call, undated.judgment)
    feedback = date_reply(call, undated, fields.get("given_at"))
    is_forgotten = call.access.view.forgotten_at(feedback.episode_id) > feedback.given_at
    return None if is_forgotten else feedback.to_json()


def _check_criterion(call: NodeCall, judgment: Judgment) -> None:
    name = call.access.criterion.name
    if judgment.criterion != name:
        raise InvalidInputError(
            f"criterion: the expert was asked about {judgment.criterion!r}, but this graph judges "
            f"{name!r}. Answer in a graph with the former criterion, or judge the case again."
        )


def date_reply(call: NodeCall, feedback: Feedback, given_at: datetime | None) -> Feedback:
    """Date a reply after what its expert said before, unless it names an earlier date."""
    latest = date_after_known(call.access.view, feedback.episode_id, utc_now())
    return feedback.model_copy(update={"given_at": min(given_at or latest, latest)})
