"""Which of two words of one expert on one example counts: pure functions."""

from datetime import UTC, datetime, timedelta

from memalign_graph.types import Episode, Feedback


def said_after(stored: Episode | None, feedback: Feedback) -> Feedback:
    """Date what is said now after the word before it, by whichever clock that was dated."""
    if stored is None:
        return feedback
    latest = datetime.max.replace(tzinfo=UTC)
    after = stored.given_at + min(timedelta(microseconds=1), latest - stored.given_at)
    return feedback.model_copy(update={"given_at": max(feedback.given_at, after)})


def newer_word(stored: Episode | None, said: Episode, *, replaces: bool = False) -> Episode:
    """Return the episode to keep; `replaces` is an expert's own change of an earlier word."""
    if stored is None:
        return said
    threads = list(dict.fromkeys([*stored.thread_ids, *said.thread_ids]))
    both = {"thread_ids": threads, "feedback_id": said.feedback_id or stored.feedback_id}
    confirms = said.rationale is None and stored.value in (None, said.value)
    repeats = said.value is None and said.rationale == stored.rationale
    if replaces and said.given_at >= stored.given_at:
        return said.model_copy(update={**both, "created_at": stored.created_at})
    if repeats or stored.says_the_same_as(said) or stored.given_at > said.given_at:
        kept = stored.model_copy(update=both)
    elif confirms:
        kept = stored.model_copy(update={**both, "value": said.value})
    else:
        return said.model_copy(update={**both, "created_at": stored.created_at})
    kept = kept.model_copy(update={"judgment": stored.judgment or said.judgment})
    if kept == stored:
        return stored
    return kept.model_copy(update={"updated_at": said.updated_at})


def takes_back(stored: Episode, after: Episode) -> bool:
    """Tell whether what a stored word supported has lost its support."""
    return stored.rationale != after.rationale or stored.value not in (None, after.value)
