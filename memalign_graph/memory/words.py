"""Which of two words of one expert on one example counts: pure functions."""

from memalign_graph.types import Episode


def newer_word(stored: Episode | None, said: Episode) -> Episode:
    """Return the episode to keep.

    The stored one where the word is the same, where it is newer (a retry may bring an old word
    late), or where a value alone is said that does not contradict it: whoever confirms a value
    does not take the words back.

    Args:
        stored: What is there.
        said: What is said.

    Returns:
        One of the two, with the threads of both, and the id that the feedback has elsewhere.
    """
    if stored is None:
        return said
    threads = list(dict.fromkeys([*stored.thread_ids, *said.thread_ids]))
    both = {"thread_ids": threads, "feedback_id": said.feedback_id or stored.feedback_id}
    confirms = said.rationale is None and stored.value in (None, said.value)
    repeats = said.value is None and said.rationale == stored.rationale
    if repeats or stored.says_the_same_as(said) or stored.given_at > said.given_at:
        kept = stored.model_copy(update=both)
    elif confirms:
        kept = stored.model_copy(update={**both, "value": said.value})
    else:
        return said.model_copy(update={**both, "created_at": stored.created_at})
    if kept == stored:
        return stored
    return kept.model_copy(update={"updated_at": said.updated_at})


def takes_back(stored: Episode, after: Episode) -> bool:
    """Tell whether what a stored word supported has lost its support.

    Args:
        stored: The word as it was.
        after: The word as it is.

    Returns:
        Whether the expert says something else now, or less.
    """
    return stored.rationale != after.rationale or stored.value not in (None, after.value)
