"""Distill feedback into guidelines, and redistill guidelines that lost a source.

Feedback that a model can't distill stays pending and is tried a few times.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from memalign_graph.alignment.comment_questions import distill_comments, drop_refuted
from memalign_graph.asking import ask_with_retry, with_schema
from memalign_graph.errors import ChatModelError, ModelAnswerError, enumerate_ids, is_about_prompt
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import commit_lesson
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.memory.purge import Forgotten, split_removed
from memalign_graph.models import BaseChatModel, is_small_model, max_input_tokens, model_key
from memalign_graph.prompts.distill import (
    distill_prompt,
    feedback_budget,
    feedback_tokens,
    group_by_example,
    operations_schema,
)
from memalign_graph.prompts.distill_small import (
    MAX_COMMENTS,
    expert_questions_schema,
    small_distill_prompt,
)
from memalign_graph.prompts.distilled import DistillResult, ModelError, read_distilled
from memalign_graph.settings import DEFAULT_BATCH_SIZE
from memalign_graph.types import Criterion, Episode, Guideline

Source = TypeVar("Source", bound=Episode | EpisodeRow | Guideline)

MAX_CONCURRENCY = 32
_MAX_SINGLE_COMMENTS = 3  # that a small model distills one by one
_MAX_SOURCES = 50
"""A guideline is reworded from its newest sources."""

MAX_ATTEMPTS = 3
"""Attempts to distill feedback or a guideline."""

_GIVEN_UP = (
    "{} {} could not be distilled in {} attempts, and are not tried again until they, the model or "
    "its settings change: {}."
)


class NoWordingError(ModelAnswerError):
    """A model answered without a new wording for a guideline."""


def pack_batches(
    episodes: Sequence[Episode],
    criterion: Criterion,
    guidelines: Sequence[Guideline],
    *,
    max_input_tokens: int,
    max_batch_size: int = DEFAULT_BATCH_SIZE,
    is_small: bool = False,
) -> list[list[str]]:
    """Pack feedback into batches that fit the model's window; a case's feedback stays together.

    A small model gets a few comments at a time, which always fit.
    """
    budget = 0
    if is_small:
        max_batch_size = min(max_batch_size, MAX_COMMENTS)
    else:
        budget = feedback_budget(criterion, guidelines, max_input_tokens=max_input_tokens)
    batches: list[list[str]] = []
    tokens_left = 0
    for case in group_by_example(sorted(episodes, key=lambda item: (item.given_at, item.id))):
        tokens = 0 if is_small else feedback_tokens(case)
        if not batches or tokens > tokens_left or len(batches[-1]) + len(case) > max_batch_size:
            batches.append([])
            tokens_left = budget
        batches[-1] += [episode.id for episode in case]
        tokens_left -= tokens
    return batches


async def distill_episodes(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    episodes: Sequence[Episode],
    guidelines: Sequence[Guideline] = (),
    *,
    max_operations: int | None = None,
) -> DistillResult:
    """Distill feedback into operations on guidelines, as much of it as fits into one prompt."""
    small, window = is_small_model(chat), max_input_tokens(chat)
    commented = [episode for episode in episodes if episode.rationale]
    if small and 0 < len(commented) <= _MAX_SINGLE_COMMENTS:
        return await distill_comments(io, access, chat, commented[:max_operations], guidelines)
    if small and not commented and (max_operations or len(episodes) <= _MAX_SINGLE_COMMENTS):
        # Without a comment, a question would come from the judged text and not from the expert.
        return DistillResult(read={episode.id: episode.word for episode in episodes})
    if small:
        prompt = small_distill_prompt(
            access.criterion,
            episodes=episodes,
            max_input_tokens=window,
            max_operations=max_operations,
        )
        schema = expert_questions_schema(prompt.max_operations)
    else:
        prompt = distill_prompt(
            access.criterion,
            guidelines=guidelines,
            episodes=episodes,
            max_input_tokens=window,
            max_operations=max_operations,
        )
        schema = operations_schema(prompt)
    result, _ = await ask_with_retry(
        io,
        with_schema(chat, schema, "distil"),
        prompt.messages,
        lambda answer, last: read_distilled(answer, prompt, drop_rejected=last),
    )
    if small:
        await drop_refuted(io, access, chat, result, prompt.episodes.values())
    return result


async def distill_in_batches(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    episodes: Sequence[Episode],
    *,
    leaves_rest: bool = False,
) -> DistillResult:
    """Distill feedback in as many prompts as it takes.

    The feedback of a prompt that fails is halved until one piece is left. If the model can't be
    reached, the rest fails without another call. With `leaves_rest` feedback that does not fit into
    the first prompt is not distilled.

    Raises:
        ChatModelError: The model can't be reached, and nothing was distilled.
    """
    result, guidelines = DistillResult(), await access.guidelines(io)
    parts = [list(episodes)]
    while parts:
        waiting = [episode for episode in parts.pop() if episode.id not in result.read]
        if not waiting:
            continue
        try:
            part = await distill_episodes(io, access, chat, waiting, guidelines)
            result += replace(part, by_prompt=[part])
        except (ChatModelError, ModelAnswerError) as error:
            if not is_about_prompt(error):
                if not result.read:
                    raise
                waiting += [item for part in parts for item in part if item.id not in result.read]
                parts = []
            elif len(waiting) > 1:
                half = len(waiting) // 2
                parts += [waiting[half:], waiting[:half]]
                continue
            result = sum((failure_of(access, chat, each, error) for each in waiting), result)
        else:
            parts += [] if leaves_rest else [waiting]
    return result


async def reword(
    io: IO, access: MemoryAccess, chat: BaseChatModel, guideline: Guideline
) -> DistillResult:
    """Reword a pending guideline from its sources alone.

    If the model gives no wording, the guideline keeps its own and stays pending.
    """
    sources = await access.episodes(io, guideline.episode_ids)
    newest = sorted(sources.values(), key=lambda item: (item.given_at, item.id), reverse=True)
    if not newest:
        return DistillResult()  # forgotten in the meantime, with its last source
    try:
        result = await distill_episodes(io, access, chat, newest[:_MAX_SOURCES], max_operations=1)
    except (ChatModelError, ModelAnswerError) as error:
        return failure_of(access, chat, guideline, error)
    if not result.operations:
        why = NoWordingError("the model gave no new wording")
        failure = failure_of(access, chat, guideline, why)
        return DistillResult(warnings=result.all_warnings) + failure
    operation = GuidelineOperation(
        guideline_id=guideline.id,
        action="revise",
        text=result.operations[-1].text,
        question=result.operations[-1].question,
        before=guideline.text,
        episode_ids=list(result.read),
    )
    return DistillResult([operation], result.all_warnings, result.read)


async def reword_pending(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    *,
    limit: int = MAX_CONCURRENCY,
    max_guidelines: int | None = None,
) -> DistillResult:
    """Reword the pending guidelines whose attempts are not used up."""
    pending = await access.pending_guidelines(io)
    outdated = islice(sources_to_try(access, chat, pending), max_guidelines)
    rewording = [reword(io, access, chat, guideline) for guideline in outdated]
    return sum(await io.gather(rewording, limit), DistillResult())


async def redistill(io: IO, access: MemoryAccess, chat: BaseChatModel) -> dict[str, Any]:
    """Redistill all pending guidelines; raise the first error after committing the others."""
    result = await reword_pending(io, access, chat)
    learned = await commit_redistilled(
        io, access, result.operations, result.read, result.failed_attempts
    )
    warnings = access.log_warnings(result.warnings)
    for error in result.errors:
        if not isinstance(error, NoWordingError):
            raise error
    return {**learned, "warnings": warnings}


def sources_to_try(
    access: MemoryAccess, chat: BaseChatModel, sources: Iterable[Source]
) -> Iterator[Source]:
    """Return the sources whose attempts are not used up since they last changed."""
    key, has_failures = _model_key(chat), bool(access.view.failed_attempts())
    # Mostly nothing has failed; the ids of attempts take longer than reading the feedback.
    return (each for each in sources if not has_failures or _attempts_left(access, key, each))


def give_up_warnings(
    access: MemoryAccess, chat: BaseChatModel, kind: str, sources: Sequence[Episode | Guideline]
) -> list[str]:
    """Return a warning about sources whose attempts are used up, if there are any."""
    left = {source.id for source in sources_to_try(access, chat, sources)}
    ids = sorted({source.id for source in sources} - left)
    return [_GIVEN_UP.format(len(ids), kind, MAX_ATTEMPTS, enumerate_ids(ids))] if ids else []


def count_unused(
    access: MemoryAccess, chat: BaseChatModel, rows: Sequence[EpisodeRow]
) -> dict[str, str]:
    """Return the attempts at feedback that a model read and did not use, by episode id.

    Feedback whose last attempt this was is left out: it counts as distilled, as in an alignment.
    """
    key = _model_key(chat)
    attempts = {row.id: _attempts_left(access, key, row) for row in rows}
    return {episode_id: left[0] for episode_id, left in attempts.items() if len(left) > 1}


def failure_of(
    access: MemoryAccess, chat: BaseChatModel, source: Episode | Guideline, error: ModelError
) -> DistillResult:
    """Return the result of a failure: an attempt is used up only if the model could be reached."""
    kind = "Feedback" if isinstance(source, Episode) else "Guideline"
    warning = f"{kind} {source.id} could not be distilled and stays pending: {error}"
    left = _attempts_left(access, _model_key(chat), source)
    attempts = left[:1] if is_about_prompt(error) else []
    return DistillResult(warnings=[warning], failed_attempts=attempts, errors=[error])


def _model_key(chat: BaseChatModel) -> tuple[str, int]:
    # Another window may let a prompt through that was too long.
    return model_key(chat), max_input_tokens(chat)


def _attempts_left(
    access: MemoryAccess, key: tuple[str, int], source: Episode | EpisodeRow | Guideline
) -> list[str]:
    """Return the ids of the attempts that are left to the source and the model.

    An attempt has an id, so that a commit that is repeated counts it once.
    """
    content = [source.text, *source.episode_ids] if isinstance(source, Guideline) else source.word
    prefix = ["attempt", source.id, content, *key]
    attempts = [digest([*prefix, number]) for number in range(MAX_ATTEMPTS)]
    return [attempt for attempt in attempts if attempt not in access.view.failed_attempts()]


async def commit_redistilled(
    io: IO,
    access: MemoryAccess,
    operations: list[GuidelineOperation],
    read: dict[str, str],
    failed_attempts: Sequence[str] = (),
) -> dict[str, Any]:
    """Commit new wordings of pending guidelines; their sources are distilled already."""
    return await commit_lesson(
        io,
        access,
        operations,
        read,
        prompts=[operation.episode_ids for operation in operations],
        is_redistilling=True,
        failed=failed_attempts,
        reason="redistill",
    )


def dump_operations(operations: Sequence[GuidelineOperation]) -> list[dict[str, Any]]:
    return [operation.model_dump(mode="json") for operation in operations]


def load_operations(operations: list[dict[str, Any]] | None) -> list[GuidelineOperation]:
    return [GuidelineOperation.model_validate(fields) for fields in operations or []]


async def commit_distilled(
    io: IO,
    access: MemoryAccess,
    lesson: Mapping[str, Any],
    *,
    author: str | None = None,
    reason: str = "learn",
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Commit what nodes distilled; returns what was learned, and the new wordings."""
    learned = await commit_lesson(
        io,
        access,
        load_operations(lesson.get("operations")),
        lesson.get("read", {}),
        prompts=lesson.get("prompts"),
        author=author,
        skipped_episode_ids=lesson.get("left_pending", []),
        failed=lesson.get("failed_attempts", []),
        reason=reason,
    )
    # Last: the operations were proposed for the earlier wordings.
    rewordings = load_operations(lesson.get("rewordings"))
    if not rewordings:
        return learned, []
    reworded = await commit_redistilled(io, access, rewordings, lesson["reworded"])
    return {**learned, "memory_version": reworded["memory_version"]}, reworded["guidelines"]


async def redistill_after_forget(
    io: IO, access: MemoryAccess, chat: Callable[[], BaseChatModel], forgotten: Forgotten
) -> Forgotten:
    """Redistill guidelines that lost a source, and feedback that was distilled with purged one."""
    reduced = forgotten.guidelines_reduced
    if any(guideline.status == "pending" for guideline in reduced):
        await redistill(io, access, chat())
    if forgotten.purged is not None and forgotten.purged.pending:
        episodes = await access.episodes(io, forgotten.purged.pending)
        errors: list[ModelError] = []
        # A later purge distills all of a prompt again: it has no more than in an alignment.
        for batch in pack_batches(
            list(episodes.values()),
            access.criterion,
            await access.guidelines(io),
            max_input_tokens=max_input_tokens(chat()),
            is_small=is_small_model(chat()),
        ):
            result = await distill_in_batches(io, access, chat(), [episodes[key] for key in batch])
            learned = await commit_lesson(
                io, access, result.operations, result.read, failed=result.failed_attempts
            )
            access.log_warnings([*result.all_warnings, *learned["warnings"]])
            errors += result.errors
        if errors:
            raise errors[0]
    removed, left = split_removed(reduced, await access.guidelines(io))
    gone = [*forgotten.guidelines_removed, *removed]
    return replace(forgotten, guidelines_reduced=left, guidelines_removed=gone)
