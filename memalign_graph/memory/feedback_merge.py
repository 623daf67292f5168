"""Which of two pieces of feedback of one expert on one example counts: pure functions."""

from datetime import UTC, datetime, timedelta

from memalign_graph.types import Episode, Feedback


def order_after(stored: Episode | None, feedback: Feedback) -> Feedback:
    """Date new feedback after the stored one, whichever clock dated that."""
    if stored is None:
        return feedback
    latest = datetime.max.replace(tzinfo=UTC)
    after = stored.given_at + min(timedelta(microseconds=1), latest - stored.given_at)
    return feedback.model_copy(update={"given_at": max(feedback.given_at, after)})


def merge_feedback(stored: Episode | None, new: Episode, *, replaces: bool = False) -> Episode:
    """Return the episode to keep; `replaces` says that the expert edits the stored feedback."""
    if stored is None:
        return new
    threads = list(dict.fromkeys([*stored.thread_ids, *new.thread_ids]))
    confirms = new.rationale is None and stored.value in (None, new.value)
    repeats = new.value is None and new.rationale == stored.rationale
    adds_nothing = repeats or stored.says_the_same_as(new) or stored.given_at > new.given_at
    is_revision = replaces and new.given_at >= stored.given_at
    is_new = is_revision or not (adds_nothing or confirms)
    judgment = new.judgment if is_new else stored.judgment or new.judgment
    verdicts = {**stored.verdicts, **new.verdicts}
    if judgment is not None:
        del verdicts[judgment.id]
    common = {
        "thread_ids": threads,
        "feedback_id": new.feedback_id or stored.feedback_id,
        "judgment": judgment,
        "other_verdicts": verdicts,
    }
    if is_new:
        return new.model_copy(update={**common, "created_at": stored.created_at})
    value = stored.value if adds_nothing else new.value
    merged = stored.model_copy(update={**common, "value": value})
    return stored if merged == stored else merged.model_copy(update={"updated_at": new.updated_at})


def withdraws_support(stored: Episode, after: Episode) -> bool:
    """Return whether guidelines that rest on the stored feedback lose it as a source."""
    return stored.rationale != after.rationale or stored.value not in (None, after.value)
