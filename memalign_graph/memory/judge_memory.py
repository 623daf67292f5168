"""`JudgeMemory`: one criterion's memory in a LangGraph store, sync and async."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, get_args, overload

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError, MemAlignError, show_value
from memalign_graph.evidence.threshold import Trust
from memalign_graph.io import ASYNC, IO, SYNC, run_sync, sync_async_methods
from memalign_graph.memory import history, jsonl, learning, reports
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import DEFAULT_NAMESPACE, MemoryLayout, check_namespace
from memalign_graph.memory.feedback import remember, revise
from memalign_graph.memory.guidelines import check_name
from memalign_graph.memory.history import Commit, MemoryDiff, Snapshot
from memalign_graph.memory.judgments import KeptJudgment, kept_judgments
from memalign_graph.memory.purge import Forgotten, Selection, forget
from memalign_graph.memory.purge import purge as erase
from memalign_graph.memory.recall import load_examples, recall
from memalign_graph.memory.reports import GroupBy, PassRate, ReviewReport
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    ChatModelLike,
    Embedder,
    EmbeddingsLike,
    OncePerLoop,
    check_chat_model,
    resolve_chat_model,
)
from memalign_graph.scales import Passes
from memalign_graph.types import (
    Criterion,
    Decide,
    Episode,
    ExampleLike,
    Feedback,
    FeedbackLike,
    Guideline,
    RecalledExample,
    parse_example,
    parse_feedback,
)


class JudgeMemory:
    """The memory of one criterion: episodes and guidelines in a LangGraph store.

    Objects and processes may share a memory, since the store has all of it. Each method has an
    async variant with the prefix `a`; use these on an Agent Server.

    Example:
        ```python
        memory = JudgeMemory(InMemoryStore(), criterion, embeddings="local")
        memory.remember(Feedback(inputs="...", outputs="...", rationale="Too cold."))
        memory.recall(Example(inputs="...", outputs="..."), k=3)
        ```
    """

    def __init__(
        self,
        store: BaseStore,
        criterion: Criterion,
        *,
        namespace: Sequence[str] | str = DEFAULT_NAMESPACE,
        embeddings: EmbeddingsLike = DEFAULT_EMBEDDINGS,
        model: ChatModelLike | None = None,
    ) -> None:
        """Open a memory; nothing is read or written yet.

        Args:
            store: Any LangGraph store.
            criterion: What is judged.
            namespace: Labels that separate memories of the same criterion.
            embeddings: LangChain embeddings, a function, or a name such as `local`.
            model: The chat model for `consolidate`, and for distilling again after `forget`.

        Raises:
            InvalidInputError: If an argument cannot be used.
        """
        _check_type("store", store, BaseStore, "a LangGraph store, such as InMemoryStore()")
        _check_type("criterion", criterion, Criterion, "Criterion(name=..., instructions=...)")
        self.criterion = criterion
        self._model: Callable[[], Any] | None = None
        if model is not None:
            resolve = partial(resolve_chat_model, check_chat_model(model))
            self._model = partial(OncePerLoop[Any]().get, None, resolve)
        self._base_access = MemoryAccess(
            store=store,
            criterion=criterion,
            layout=MemoryLayout((*check_namespace(namespace), criterion.name)),
            embedder=Embedder(embeddings),
        )

    @property
    def access(self) -> MemoryAccess:
        """A new `MemoryAccess` for one operation: it keeps the memory cached while it lives."""
        return replace(self._base_access)

    @overload
    def remember(self, feedback: FeedbackLike) -> Episode: ...
    @overload
    def remember(self, feedback: Sequence[FeedbackLike]) -> list[Episode]: ...
    def remember(self, feedback: FeedbackLike | Sequence[FeedbackLike]) -> Episode | list[Episode]:
        """Store feedback as pending episodes.

        The same feedback again changes nothing. Other feedback of the same author on the same
        example replaces the episode. A list may be stored repeatedly, such as a table that grows:
        a row does not undo what its author revised or forgot, unless it has a later `given_at`. A
        case that the embeddings refuse is stored without a vector, and a warning is logged.

        Args:
            feedback: One piece of feedback, or several; as `Feedback` or as its fields.

        Returns:
            The resulting episode, or a list with one for each active piece of feedback.

        Raises:
            InvalidInputError: If feedback cannot be used; nothing is stored.
            EmbeddingError: If an embedding call fails; nothing is stored.
        """
        return run_sync(self._remember(SYNC, feedback))

    @overload
    async def aremember(self, feedback: FeedbackLike) -> Episode: ...
    @overload
    async def aremember(self, feedback: Sequence[FeedbackLike]) -> list[Episode]: ...
    async def aremember(
        self, feedback: FeedbackLike | Sequence[FeedbackLike]
    ) -> Episode | list[Episode]:
        """Store feedback as `remember` does."""
        return await self._remember(ASYNC, feedback)

    async def _recall(self, io: IO, example: ExampleLike, k: int = 5) -> list[RecalledExample]:
        """Find the most similar examples in memory, by inputs and outputs.

        Args:
            example: The example, or its fields.
            k: The most examples to return.

        Returns:
            Up to k examples, most similar first, each with the feedback of all experts.

        Raises:
            InvalidInputError: If the example cannot be used, or k is negative.
            EmbeddingError: If an embedding call fails.
        """
        if not isinstance(k, int) or k < 0:
            raise InvalidInputError(f"k: expected a whole number from 0 on, got {show_value(k)}.")
        access = self.access
        found = await recall(io, access, parse_example(example), k)
        access.log_warnings(found.warnings)
        return load_examples(access.view, found.recalled)

    recall, arecall = sync_async_methods(_recall)

    async def _episodes(self, io: IO) -> list[Episode]:
        """Return all episodes, oldest first."""
        return await self.access.all_episodes(io)

    episodes, aepisodes = sync_async_methods(_episodes)

    async def _guidelines(self, io: IO) -> list[Guideline]:
        """Return the active guidelines, in the order a judge reads them."""
        return await self.access.guidelines(io)

    guidelines, aguidelines = sync_async_methods(_guidelines)

    async def _judgments(self, io: IO, *, waiting: bool = False) -> list[KeptJudgment]:
        """Return the judgments that are kept for feedback, the first to expire first.

        They are not part of the memory's version, nor of an export.

        Args:
            waiting: True to return only judgments without feedback.

        Returns:
            The judgments.
        """
        return await kept_judgments(io, self.access, waiting=waiting)

    judgments, ajudgments = sync_async_methods(_judgments)

    async def _version(self, io: IO) -> str:
        """Return the memory's version: a hash of its active episodes and guidelines."""
        return (await self.access.refresh(io)).version

    version, aversion = sync_async_methods(_version)

    async def _add_guideline(self, io: IO, text: str, *, author: str | None = None) -> Guideline:
        """Add a guideline by hand.

        Args:
            text: The guideline, a sentence of up to 2,000 characters.
            author: Who adds it.

        Returns:
            The guideline. If an active one has the same text, it is that one: it keeps its sources.

        Raises:
            InvalidInputError: If the text cannot be used.
        """
        return await learning.add_guideline(io, self.access, text, author=author)

    add_guideline, aadd_guideline = sync_async_methods(_add_guideline)

    async def _edit_guideline(
        self, io: IO, guideline_id: str, text: str, *, author: str | None = None
    ) -> Guideline:
        """Change a guideline's text by hand; it keeps its id, position and sources.

        Args:
            guideline_id: The guideline.
            text: The new text, a sentence of up to 2,000 characters.
            author: Who changes it.

        Returns:
            The changed guideline.

        Raises:
            InvalidInputError: If the text cannot be used, or there is no such guideline.
        """
        return await learning.edit_guideline(io, self.access, guideline_id, text, author=author)

    edit_guideline, aedit_guideline = sync_async_methods(_edit_guideline)

    async def _remove_guideline(
        self, io: IO, guideline_id: str, *, author: str | None = None
    ) -> Guideline:
        """Retire a guideline; its source episodes stay.

        Args:
            guideline_id: The guideline.
            author: Who retires it.

        Returns:
            The retired guideline.

        Raises:
            InvalidInputError: If there is no such guideline.
        """
        return await learning.remove_guideline(io, self.access, guideline_id, author=author)

    remove_guideline, aremove_guideline = sync_async_methods(_remove_guideline)

    async def _remember(
        self, io: IO, feedback: FeedbackLike | Sequence[FeedbackLike]
    ) -> Episode | list[Episode]:
        if isinstance(feedback, Feedback | Mapping | str) or not isinstance(feedback, Iterable):
            stored = await remember(io, self.access, [parse_feedback(feedback)])
            return stored.episodes[0]
        table = list(map(parse_feedback, feedback))
        return (await remember(io, self.access, table, is_table=True)).episodes

    async def _forget(
        self,
        io: IO,
        episode_ids: Iterable[str] | str | None = None,
        *,
        feedback_ids: Iterable[str] | str | None = None,
        author: str | None = None,
        where: Callable[[Episode], Any] | None = None,
        purge: bool = False,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        by: str | None = None,
    ) -> Forgotten:
        """Forget feedback, and the guidelines that rest on it alone.

        A guideline that one of these had replaced becomes active again. Guidelines with other
        sources become `pending`, and are distilled again from those: at once if the memory has a
        `model`, otherwise by the next alignment or review. `rollback` restores what is forgotten,
        but not what is purged. Episodes that match all arguments are forgotten.

        Args:
            episode_ids: Episodes by id.
            feedback_ids: Episodes by the `id` of their feedback.
            author: Episodes by expert.
            where: Episodes by a function of the `Episode`.
            purge: Whether to erase the feedback for good: from all items and vectors, with the
                guidelines made from it, from an SQLite store's file, and from the checkpointer.
            checkpointer: For a purge: the checkpointer of the graphs that the feedback passed
                through. Every thread that contains it is deleted.
            by: Who forgets it.

        Returns:
            What changed, and the given ids that the memory does not have; for a purge also what
            could not be erased.

        Raises:
            InvalidInputError: If no episodes are chosen, or an argument cannot be used.
            ChatModelError: If distilling again fails; the feedback is forgotten anyway. Notes of
                the error name what a purge could not erase.
        """
        # Imported here, since alignment is built on memory.
        from memalign_graph.alignment.distill import redistill_after_forget

        selection = Selection(
            episode_ids=_ids(episode_ids, "episode_ids"),
            feedback_ids=_ids(feedback_ids, "feedback_ids"),
            author=check_name(author, "author"),
            where=where,
        )
        by = check_name(by, "by")
        _check_type("purge", purge, bool, "True or False")
        saver = (BaseCheckpointSaver, NoneType)
        _check_type("checkpointer", checkpointer, saver, "a LangGraph checkpointer")
        if purge:
            forgotten = await erase(io, self.access, selection, checkpointer, author=by)
        elif checkpointer is not None:
            raise InvalidInputError("checkpointer: only a purge uses it. Add `purge=True`.")
        else:
            forgotten = await forget(io, self.access, selection, author=by)
        if self._model is None:
            return forgotten
        try:
            return await redistill_after_forget(io, self.access, self._model, forgotten)
        except MemAlignError as error:
            for warning in forgotten.purged.warnings if forgotten.purged else ():
                error.add_note(warning)
            raise

    forget, aforget = sync_async_methods(_forget)

    async def _revise(
        self, io: IO, episode_id: str, feedback: Feedback | Mapping[str, Any]
    ) -> Episode:
        """Change an expert's feedback, and retire what rested on the old feedback alone.

        Args:
            episode_id: The episode.
            feedback: The new `value`, `rationale`, or both; a missing field stays as it is.

        Returns:
            The changed episode, which is pending.

        Raises:
            InvalidInputError: If there is no such episode, or the feedback cannot be used.
        """
        from memalign_graph.alignment.distill import redistill

        episode = await revise(io, self.access, episode_id, feedback)
        if self._model is not None and await self.access.pending_guidelines(io):
            await redistill(io, self.access, self._model())
        return episode

    revise, arevise = sync_async_methods(_revise)

    async def _consolidate(self, io: IO) -> dict[str, Any]:
        """Merge guidelines with the same meaning, and resolve contradictions.

        A merged guideline's sources go to the other one. The older of two that contradict each
        other is retired, unless as many other experts support it. Pending guidelines are distilled
        again.
        Needs the memory's `model`.

        Returns:
            `guidelines` (an entry for each that was merged, retired or distilled again, with
            `action`, `guideline_id`, `text`, `episode_ids`), `memory_version` and `warnings`.

        Raises:
            InvalidInputError: If the memory has no model.
            ChatModelError: If a call fails; nothing is changed.
            ModelAnswerError: If an answer cannot be used; nothing is changed.
        """
        from memalign_graph.alignment.merge import consolidate_memory

        if self._model is None:
            raise InvalidInputError(
                "model: consolidating needs a chat model. Use "
                f"JudgeMemory(..., model={DEFAULT_CHAT_MODEL!r})."
            )
        return await consolidate_memory(io, self.access, self._model())

    consolidate, aconsolidate = sync_async_methods(_consolidate)

    async def _history(self, io: IO) -> list[Commit]:
        """Return the commits, newest first."""
        return await history.history(io, self.access)

    history, ahistory = sync_async_methods(_history)

    async def _at(self, io: IO, version: str) -> Snapshot:
        """Return the memory at a version, such as a judgment's `memory_version`.

        Args:
            version: The version of a judgment, a commit or `version()`.

        Returns:
            The episodes and guidelines of that version.

        Raises:
            InvalidInputError: If `history()` does not list this version.
        """
        return await history.snapshot(io, self.access, version)

    at, aat = sync_async_methods(_at)

    async def _diff(self, io: IO, a: str, b: str | None = None) -> MemoryDiff:
        """Compare two versions.

        Args:
            a: The first version.
            b: The second version; by default the current one.

        Returns:
            The items that were added, removed and changed.

        Raises:
            InvalidInputError: If `history()` does not list one of them.
        """
        return await history.diff(io, self.access, a, b)

    diff, adiff = sync_async_methods(_diff)

    async def _rollback(self, io: IO, version: str, *, author: str | None = None) -> Snapshot:
        """Restore a version, in a new commit.

        Args:
            version: The version.
            author: Who restores it.

        Returns:
            The memory's content; `missing` has what was purged since and cannot be restored.

        Raises:
            InvalidInputError: If `history()` does not list this version.
        """
        return await history.rollback(io, self.access, version, author=author)

    rollback, arollback = sync_async_methods(_rollback)

    async def _export_jsonl(self, io: IO, path: str | PathLike[str] | None = None) -> str:
        """Export guidelines, episodes and their vectors as JSON lines.

        Args:
            path: A file to write to, too.

        Returns:
            The text.

        Raises:
            InvalidInputError: If the file cannot be written; an earlier one stays.
        """
        text = await jsonl.export_jsonl(io, self.access)
        if path is not None:
            jsonl.write_file(path, text)
        return text

    export_jsonl, aexport_jsonl = sync_async_methods(_export_jsonl)

    async def _import_jsonl(
        self, io: IO, source: str | PathLike[str] | Iterable[str], *, author: str | None = None
    ) -> list[Episode]:
        """Import an export by `export_jsonl`; ids, times and sources stay.

        Newer items of this memory stay. With the same embedder nothing is embedded again. All lines
        are checked before any is stored.

        Args:
            source: The text or its lines, or the path of a file.
            author: Who imports it.

        Returns:
            The imported episodes as they are now.

        Raises:
            InvalidInputError: If a line cannot be used; the message has its number.
        """
        return await jsonl.import_jsonl(io, self.access, _lines(source), author=author)

    import_jsonl, aimport_jsonl = sync_async_methods(_import_jsonl)

    async def _trust(
        self, io: IO, *, decide: Decide = "auto", target_agreement: float = 0.9
    ) -> Trust:
        """Return the confidence from which on `review="uncertain"` asks no expert.

        Args:
            decide: The option `decide` of the judge.
            target_agreement: The wanted agreement with the experts on judgments that no expert is
                asked about, above 0 and below 1.

        Returns:
            The threshold, the agreement and the share of past decisions above it, and the number of
            these decisions: for each verdict, and in all. Only decisions of the judge with the
            newest verdict in memory count.

        Raises:
            InvalidInputError: If an option cannot be used.
            EmbeddingError: If an embedding call fails; one is made only if the memory was filled
                with another embedder.
        """
        # Imported here, since evidence is built on memory.
        from memalign_graph.evidence.deciding import current_trust
        from memalign_graph.settings import Uncertain

        if decide not in get_args(Decide):
            modes = ", ".join(map(repr, get_args(Decide)))
            raise InvalidInputError(
                f"decide: {show_value(decide)} is not known. Use one of {modes}."
            )
        target = Uncertain(target_agreement=target_agreement).target_agreement
        return await current_trust(io, self.access, decide, target)

    trust, atrust = sync_async_methods(_trust)

    async def _review_report(
        self, io: IO, *, since: date | None = None, until: date | None = None
    ) -> ReviewReport:
        """Report what `review="uncertain"` asked in the last 90 days, why, and the agreement.

        Args:
            since: The first day in UTC; by default the log's first.
            until: The last day; by default the log's last.

        Returns:
            In all and by day: coverage, reasons for asking, and how often the judge agreed with the
            experts, on all judgments they were asked about and on the random sample.

        Raises:
            InvalidInputError: If a day is not a date, or `until` is before `since`.
        """
        return await reports.review_report(io, self.access, since=since, until=until)

    review_report, areview_report = sync_async_methods(_review_report)

    async def _pass_rate(
        self,
        io: IO,
        *,
        by: GroupBy | None = None,
        passes: Passes | None = None,
        answered_at_random: bool = False,
    ) -> PassRate:
        """Estimate the share of kept judgments that experts would pass.

        The judge's values on all of them are corrected by the experts' labels on those that
        `review="uncertain"` sampled at random. Other labels do not count: uncertain cases are not a
        random sample. On a numeric scale without `passes` the result is the experts' mean.

        Args:
            by: A grouping: `day`, `week`, a field such as `inputs.region`, or a function of the
                `Example`.
            passes: The values that pass: the lowest one, a set of values, or a function of the
                value. On a boolean scale True passes; categorical and pairwise scales need it.
            answered_at_random: True to use all labels, if experts labeled all judgments or a random
                sample of them.

        Returns:
            The rate, the judge's own rate and the rate of the labels, each with its 95 % interval,
            in all and by group.

        Raises:
            InvalidInputError: If an argument cannot be used.
        """
        return await reports.pass_rate(
            io, self.access, by=by, passes=passes, answered_at_random=answered_at_random
        )

    pass_rate, apass_rate = sync_async_methods(_pass_rate)


def _check_type(name: str, value: object, kind: type | tuple[type, ...], expected: str) -> None:
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name}: expected {expected}, got {type(value).__name__}.")


def _ids(value: Any, name: str) -> Sequence[str] | None:
    if value is None:
        return None
    ids = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not all(isinstance(each, str) for each in ids):
        raise InvalidInputError(f"{name}: expected ids as strings, got {show_value(value)}.")
    return ids


def _lines(source: Any) -> Iterable[str]:
    if isinstance(source, str) and source.removeprefix("\ufeff").lstrip()[:1] in ("", "{"):
        return source.split("\n")
    if isinstance(source, str | PathLike):
        try:
            return Path(source).read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or error
            raise InvalidInputError(
                f"source: {show_value(str(source))} can't be read: {problem}. Give the text of an "
                "export, its lines, or a file's Path."
            ) from error
    if isinstance(source, Iterable) and not isinstance(source, bytes | Mapping):
        return source
    raise InvalidInputError("source: expected the text of an export, its lines, or a file's Path.")
