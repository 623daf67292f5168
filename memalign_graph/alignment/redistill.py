"""Distilling: feedback into guidelines, and again guidelines that lost a source.

What a model can't distil stays pending by itself, and is tried a few times.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from memalign_graph.alignment.batches import pack
from memalign_graph.alignment.comment_questions import distill_comments, drop_refuted
from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.errors import ChatModelError, ModelAnswerError, is_about_prompt
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.feedback import Forgotten, clear_cached_replies, split_removed
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import learn
from memalign_graph.models import (
    BaseChatModel,
    ask_with_retry,
    is_small_model,
    max_input_tokens,
    model_key,
    with_schema,
)
from memalign_graph.prompts.distill import (
    DistillPrompt,
    Proposal,
    distill_prompt,
    operations_schema,
    read_operations,
)
from memalign_graph.prompts.distill_small import (
    expert_questions_schema,
    read_distilled,
    small_distill_prompt,
)
from memalign_graph.types import Episode, Guideline

logger = logging.getLogger(__name__)

ModelError = ChatModelError | ModelAnswerError
Source = Episode | EpisodeRow | Guideline
"""What is distilled."""


class NoWordingError(ModelAnswerError):
    """A model answered, and proposed nothing that can stand in a guideline's place."""


_TOGETHER = 32

_FEW = 3  # comments, each of which a small model distills by itself
_SOURCES = 50
"""How many of a guideline's sources are read, the newest of them."""

MAX_ATTEMPTS = 3
"""How often feedback that a model can't distil is tried."""


@dataclass(frozen=True)
class Failure:
    """Feedback, or a guideline that lost a source, that a model could not distil."""

    name: str
    """What it is, for people."""
    attempt_key: str
    """Counts failed attempts, until what is distilled changes, or the model or its settings."""
    error: ModelError

    @classmethod
    def of(cls, source: Episode | Guideline, chat: BaseChatModel, error: ModelError) -> Self:
        kind = "Feedback" if isinstance(source, Episode) else "Guideline"
        return cls(f"{kind} {source.id}", _attempt_key(source, chat), error)

    @property
    def counts(self) -> bool:
        """Whether it is an attempt: the model could be asked."""
        return is_about_prompt(self.error)

    def __str__(self) -> str:
        return f"{self.name} could not be distilled and stays pending: {self.error}"


@dataclass(frozen=True)
class Rewording:
    """A new wording for a guideline that had lost a source, or that it goes."""

    operation: GuidelineOperation | None
    """None where the guideline stays as it is."""
    read: dict[str, str]
    """What was read: the word of each episode by its id."""
    refused: list[str]
    """Which wordings were not kept, and why."""
    failure: Failure | None = None


def _attempt_key(source: Source, chat: BaseChatModel) -> str:
    if isinstance(source, Guideline):
        content: Any = [source.text, *source.episode_ids]
    else:
        content = source.word
    return digest(["attempt", source.id, content, model_key(chat)])


async def distil(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    episodes: Sequence[Episode],
    guidelines: Sequence[Guideline] = (),
    *,
    most_operations: int | None = None,
) -> tuple[DistillPrompt, Proposal]:
    """Ask for what feedback teaches."""
    small, window = is_small_model(chat), max_input_tokens(chat)
    commented = [episode for episode in episodes if episode.rationale]
    if small and 0 < len(commented) <= _FEW:
        return await distill_comments(io, access, chat, commented[: most_operations or _FEW])
    if small:
        prompt = small_distill_prompt(
            access.criterion,
            episodes=episodes,
            max_input_tokens=window,
            most_operations=most_operations,
        )
        schema = expert_questions_schema(prompt.most_operations)
    else:
        prompt = distill_prompt(
            access.criterion,
            guidelines=guidelines,
            episodes=episodes,
            max_input_tokens=window,
            most_operations=most_operations,
        )
        schema = operations_schema(prompt)

    def read(answer: dict[str, Any], last: bool) -> Proposal:  # noqa: FBT001 - as `ask` calls it
        return (read_distilled if small else read_operations)(answer, prompt, drop_idle=last)

    model = with_schema(chat, schema)
    proposal, _ = await ask_with_retry(io, model, prompt.messages, read, purpose="distil feedback")
    if small:
        proposal = await drop_refuted(io, access, chat, proposal, prompt.episodes.values())
    return prompt, proposal


@dataclass
class Reading:
    """What was made of feedback that was read in one or more prompts."""

    operations: list[GuidelineOperation] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)
    """What was read: the word of each episode by its id."""
    refused: list[str] = field(default_factory=list)
    """Which guidelines were not kept, and why."""
    cut: list[str] = field(default_factory=list)
    """The episodes that were too long to be read whole."""
    failures: list[Failure] = field(default_factory=list)
    """The feedback that could not be distilled, and stays pending."""


async def distil_all(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    episodes: Sequence[Episode],
    *,
    leaves_rest: bool = False,
) -> Reading:
    """Distil feedback beside the guidelines that stand, in as many prompts as it takes.

    A prompt that fails is halved until the feedback that it fails for stands alone. If the model
    can't be asked, the rest fails without another call. `leaves_rest` leaves what does not fit into
    a prompt for later.

    Raises:
        ChatModelError: The model can't be asked, and nothing was distilled.
    """
    reading, guidelines = Reading(), await access.guidelines(io)
    parts = [list(episodes)]
    while parts:
        waiting = [episode for episode in parts.pop() if episode.id not in reading.read]
        if not waiting:
            continue
        try:
            prompt, proposed = await distil(io, access, chat, waiting, guidelines)
        except (ChatModelError, ModelAnswerError) as error:
            if is_about_prompt(error) and len(waiting) > 1:
                half = len(waiting) // 2
                parts += [waiting[half:], waiting[:half]]
                continue
            if not is_about_prompt(error):
                if not reading.read:
                    raise
                waiting += [one for part in parts for one in part if one.id not in reading.read]
                parts = []
            reading.failures += [Failure.of(episode, chat, error) for episode in waiting]
            continue
        reading.operations += proposed.operations
        reading.refused += proposed.refused
        reading.read |= {episode.id: episode.word for episode in prompt.episodes.values()}
        reading.cut += prompt.cut
        if not leaves_rest:
            parts.append(waiting)
    return reading


async def reword(
    io: IO, access: MemoryAccess, chat: BaseChatModel, guideline: Guideline
) -> Rewording:
    """Ask for a pending guideline's wording, from its sources alone.

    It is retired where no source is left, and stays as it is where the model gives no wording.
    """
    sources = await access.episodes(io, guideline.episode_ids)
    newest = sorted(sources.values(), key=lambda episode: (episode.given_at, episode.id))
    newest = newest[-_SOURCES:][::-1]
    if not newest:
        return Rewording(GuidelineOperation(guideline_id=guideline.id, action="retire"), {}, [])
    try:
        prompt, proposed = await distil(io, access, chat, newest, most_operations=1)
    except (ChatModelError, ModelAnswerError) as error:
        return Rewording(None, {}, [], Failure.of(guideline, chat, error))
    words = {episode.id: episode.word for episode in prompt.episodes.values()}
    if not proposed.operations:
        failure = Failure.of(guideline, chat, NoWordingError("the model gave no new wording"))
        return Rewording(None, {}, proposed.refused, failure)
    operation = GuidelineOperation(
        guideline_id=guideline.id,
        action="revise",
        text=proposed.operations[-1].text,
        question=proposed.operations[-1].question,
        before=guideline.text,
        episode_ids=list(words),
    )
    return Rewording(operation, words, proposed.refused)


async def reword_all(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    guidelines: Sequence[Guideline],
    limit: int = _TOGETHER,
) -> list[Rewording]:
    """Ask for the wordings of some pending guidelines."""
    asked = [reword(io, access, chat, guideline) for guideline in guidelines]
    return await io.gather(asked, limit)


async def redistill(io: IO, access: MemoryAccess, chat: BaseChatModel) -> dict[str, Any]:
    """Distil all pending guidelines again; raises what failed when the others are done."""
    waiting = [
        guideline
        for guideline in await access.pending_guidelines(io)
        if can_be_tried(access, chat, guideline)
    ]
    rewordings = await reword_all(CachedRepliesIO(io, access), access, chat, waiting)
    failures = [rewording.failure for rewording in rewordings if rewording.failure]
    for failure in failures:
        logger.warning("%s", failure)
    learned = await learn_again(
        io, access, operations_of(rewordings), words_read(rewordings), attempts(failures)
    )
    for failure in failures:
        if not isinstance(failure.error, NoWordingError):
            raise failure.error
    if waiting:
        await clear_cached_replies(io, access)
    refused = [why for rewording in rewordings for why in rewording.refused]
    return {**learned, "warnings": [*refused, *map(str, failures)]}


def can_be_tried(access: MemoryAccess, chat: BaseChatModel, source: Source) -> bool:
    """Return whether distilling did not fail too often for what stands there now."""
    return access.view.failed_attempts(_attempt_key(source, chat)) < MAX_ATTEMPTS


def attempts(failures: Iterable[Failure]) -> list[str]:
    """Return what counts as failed attempts, for `learn`."""
    return [failure.attempt_key for failure in failures if failure.counts]


def operations_of(rewordings: Sequence[Rewording]) -> list[GuidelineOperation]:
    return [rewording.operation for rewording in rewordings if rewording.operation is not None]


def words_read(rewordings: Sequence[Rewording]) -> dict[str, str]:
    """Return what was read for some rewordings: the word of each episode by its id."""
    return {key: word for rewording in rewordings for key, word in rewording.read.items()}


async def learn_again(
    io: IO,
    access: MemoryAccess,
    operations: list[GuidelineOperation],
    read: dict[str, str],
    failed: Sequence[str] = (),
) -> dict[str, Any]:
    """Commit what was made of pending guidelines; their sources were learned from before."""
    prompts = [operation.episode_ids for operation in operations]
    return await learn(
        io,
        access,
        operations,
        read,
        prompts=prompts,
        is_redistilling=True,
        failed=failed,
        reason="redistill",
    )


async def redistilled(
    io: IO, access: MemoryAccess, chat: Callable[[], BaseChatModel], forgotten: Forgotten
) -> Forgotten:
    """Distil again what lost a source, and what was read along with what is purged."""
    read_along = forgotten.purged.pending if forgotten.purged is not None else []
    reduced = forgotten.guidelines_reduced
    if any(one.status == "pending" for one in reduced):
        await redistill(io, access, chat())
    if read_along:
        episodes, standing = await access.episodes(io, read_along), await access.guidelines(io)
        batches = pack(
            list(episodes.values()),
            access.criterion,
            standing,
            max_input_tokens=max_input_tokens(chat()),
            is_small=is_small_model(chat()),
        )
        failures: list[Failure] = []
        for batch in batches:
            reading = await distil_all(io, access, chat(), [episodes[key] for key in batch])
            failed = attempts(reading.failures)
            await learn(io, access, reading.operations, reading.read, failed=failed)
            failures += reading.failures
        if failures:
            raise failures[0].error
    removed, left = split_removed(reduced, await access.guidelines(io))
    gone = [*forgotten.guidelines_removed, *removed]
    return replace(forgotten, guidelines_reduced=left, guidelines_removed=gone)
