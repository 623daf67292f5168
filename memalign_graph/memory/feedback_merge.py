"""Which of two words of one expert on one example counts: pure functions."""

from datetime import UTC, datetime, timedelta

from memalign_graph.types import Episode, Feedback


def order_after(stored: Episode | None, feedback: Feedback) -> Feedback:
    """Date what is said now after the word before it, by whichever clock that was dated."""
    if stored is None:
        return feedback
    latest = datetime.max.replace(tzinfo=UTC)
    after = stored.given_at + min(timedelta(microseconds=1), latest - stored.given_at)
    return feedback.model_copy(update={"given_at": max(feedback.given_at, after)})


def merge_feedback(stored: Episode | None, said: Episode, *, replaces: bool = False) -> Episode:
    """Return the episode to keep; `replaces` is an expert's own change of an earlier word."""
    if stored is None:
        return said
    threads = list(dict.fromkeys([*stored.thread_ids, *said.thread_ids]))
    confirms = said.rationale is None and stored.value in (None, said.value)
    repeats = said.value is None and said.rationale == stored.rationale
    adds_nothing = repeats or stored.says_the_same_as(said) or stored.given_at > said.given_at
    is_revision = replaces and said.given_at >= stored.given_at
    is_new = is_revision or not (adds_nothing or confirms)
    judgment = said.judgment if is_new else stored.judgment or said.judgment
    verdicts = {**stored.verdicts, **said.verdicts}
    if judgment is not None:
        del verdicts[judgment.id]
    both = {
        "thread_ids": threads,
        "feedback_id": said.feedback_id or stored.feedback_id,
        "judgment": judgment,
        "other_verdicts": verdicts,
    }
    if is_new:
        return said.model_copy(update={**both, "created_at": stored.created_at})
    value = stored.value if adds_nothing else said.value
    kept = stored.model_copy(update={**both, "value": value})
    return stored if kept == stored else kept.model_copy(update={"updated_at": said.updated_at})


def withdraws_support(stored: Episode, after: Episode) -> bool:
    """Tell whether what a stored word supported has lost its support."""
    return stored.rationale != after.rationale or stored.value not in (None, after.value)
