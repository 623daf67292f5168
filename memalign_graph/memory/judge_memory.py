"""`JudgeMemory`: one criterion's memory in any LangGraph store, sync and async."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any, get_args, overload

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError
from memalign_graph.evidence.threshold import Trust
from memalign_graph.io import ASYNC, IO, SYNC, run_sync, sync_async_methods
from memalign_graph.memory import history, jsonl, review_report
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.feedback import Forgotten, Selection, forget, remember, revise
from memalign_graph.memory.guidelines import (
    add_guideline,
    check_name,
    edit_guideline,
    remove_guideline,
)
from memalign_graph.memory.history import Commit, MemoryDiff, Snapshot
from memalign_graph.memory.judgments import KeptJudgment, kept_judgments
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, MemoryLayout, check_namespace
from memalign_graph.memory.pass_rate import GroupBy, PassRate, pass_rate
from memalign_graph.memory.purge import purge as erase
from memalign_graph.memory.recall import recall
from memalign_graph.memory.review_report import ReviewReport
from memalign_graph.models import (
    DEFAULT_CHAT_MODEL,
    DEFAULT_EMBEDDINGS,
    ChatModelLike,
    Embedder,
    EmbeddingsLike,
    OncePerLoop,
    is_chat_model,
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
    """What a judge has learned about one criterion: episodes and guidelines.

    The store is the only truth: any number of these, in any number of processes, can work on one
    memory. Each method has an async twin whose name begins with `a`; on an Agent Server use those.

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
        """Open a memory; nothing is read or written yet."""
        if not isinstance(store, BaseStore):
            raise InvalidInputError(
                "store: give a LangGraph store, such as InMemoryStore() or open_local_store(...); "
                f"this is a value of type {type(store).__name__}."
            )
        if not isinstance(criterion, Criterion):
            raise InvalidInputError(
                "criterion: give a Criterion(name=..., instructions=...), not a value of type "
                f"{type(criterion).__name__}."
            )
        if not (model is None or is_chat_model(model)):
            raise InvalidInputError(
                f"model: give a chat model or a string such as {DEFAULT_CHAT_MODEL!r}, not a value "
                f"of type {type(model).__name__}."
            )
        self.criterion = criterion
        self._model = None if model is None else OncePerLoop(lambda: resolve_chat_model(model))
        self._base_access = MemoryAccess(
            store=store,
            criterion=criterion,
            layout=MemoryLayout((*check_namespace(namespace), criterion.name)),
            embedder=Embedder(embeddings),
        )

    @property
    def access(self) -> MemoryAccess:
        """The memory as an operation reaches it: a new one each time, to be held no longer."""
        return replace(self._base_access)

    @overload
    def remember(self, feedback: FeedbackLike) -> Episode: ...
    @overload
    def remember(self, feedback: Sequence[FeedbackLike]) -> list[Episode]: ...
    def remember(self, feedback: FeedbackLike | Sequence[FeedbackLike]) -> Episode | list[Episode]:
        """Store feedback as episodes that await distilling.

        The same feedback again changes nothing; other feedback of the same author on the same
        example replaces the episode. A list is a table, which may be given again and again: what
        its author corrected or took back since is not said anew, unless it has a `given_at`.

        Args:
            feedback: One piece of feedback, or several; as `Feedback` or as its fields.

        Returns:
            The episode as it stands now, or one for each that stands.

        Raises:
            InvalidInputError: If feedback can't be used; nothing is stored then.
            EmbeddingError: If an embedding call fails; nothing is stored then.
        """
        return run_sync(self._remember(SYNC, feedback))

    @overload
    async def aremember(self, feedback: FeedbackLike) -> Episode: ...
    @overload
    async def aremember(self, feedback: Sequence[FeedbackLike]) -> list[Episode]: ...
    async def aremember(
        self, feedback: FeedbackLike | Sequence[FeedbackLike]
    ) -> Episode | list[Episode]:
        """Async twin of `remember`."""
        return await self._remember(ASYNC, feedback)

    async def _recall(self, io: IO, example: ExampleLike, k: int = 5) -> list[RecalledExample]:
        """Find the examples in memory most like this one, by inputs and outputs.

        Args:
            example: The example, or its fields.
            k: How many to find; 0 finds none.

        Returns:
            Up to k examples, most similar first, each with every expert's word on it.

        Raises:
            InvalidInputError: If the example can't be used, or k is below 0.
            EmbeddingError: If an embedding call fails.
        """
        if not isinstance(k, int) or k < 0:
            raise InvalidInputError(f"k: {k!r} is not a whole number from 0 on.")
        return (await recall(io, self.access, parse_example(example), k)).examples

    recall, arecall = sync_async_methods(_recall)

    async def _episodes(self, io: IO) -> list[Episode]:
        """Return all episodes, oldest first."""
        return await self.access.all_episodes(io)

    episodes, aepisodes = sync_async_methods(_episodes)

    async def _guidelines(self, io: IO) -> list[Guideline]:
        """Return the guidelines, in the order a judge reads them.

        What was replaced, by what and why, is in `history` and `diff`.
        """
        return await self.access.guidelines(io)

    guidelines, aguidelines = sync_async_methods(_guidelines)

    async def _judgments(self, io: IO, *, waiting: bool = False) -> list[KeptJudgment]:
        """Return the judgments that are kept for feedback, those that go first before the others.

        They are no part of the memory's content: its version does not tell of them, and an export
        leaves them out.

        Args:
            waiting: True to leave out those on which an expert has said something.

        Returns:
            The judgments.
        """
        return await kept_judgments(io, self.access, waiting=waiting)

    judgments, ajudgments = sync_async_methods(_judgments)

    async def _version(self, io: IO) -> str:
        """Return the memory's version: a digest of its live items and their revisions."""
        return (await self.access.refresh(io)).version

    version, aversion = sync_async_methods(_version)

    async def _add_guideline(self, io: IO, text: str, *, author: str | None = None) -> Guideline:
        """Write a guideline by hand.

        Args:
            text: The rule, a sentence of up to 2,000 characters.
            author: Who writes it.

        Returns:
            The guideline; the one that stands, if it stands in these words already.

        Raises:
            InvalidInputError: If the text can't be used.
        """
        return await add_guideline(io, self.access, text, author=author)

    add_guideline, aadd_guideline = sync_async_methods(_add_guideline)

    async def _edit_guideline(
        self, io: IO, guideline_id: str, text: str, *, author: str | None = None
    ) -> Guideline:
        """Reword a guideline by hand; it keeps its id, its place and its sources.

        Args:
            guideline_id: Which one.
            text: The rule, a sentence of up to 2,000 characters.
            author: Who rewords it.

        Returns:
            The guideline as it stands now.

        Raises:
            InvalidInputError: If the text can't be used, or there is no such guideline.
        """
        return await edit_guideline(io, self.access, guideline_id, text, author=author)

    edit_guideline, aedit_guideline = sync_async_methods(_edit_guideline)

    async def _remove_guideline(
        self, io: IO, guideline_id: str, *, author: str | None = None
    ) -> Guideline:
        """Take a guideline away; the episodes it came from stay.

        Args:
            guideline_id: Which one.
            author: Who takes it away.

        Returns:
            The guideline as it was.

        Raises:
            InvalidInputError: If there is no such guideline.
        """
        return await remove_guideline(io, self.access, guideline_id, author=author)

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
        """Take feedback back, and what was learned from it alone.

        Guidelines that rest on it alone go, and what they had replaced comes back. Those with other
        sources are `pending` and distilled again from these alone: at once if the memory has a
        `model`, else by the next alignment or review.
        What is forgotten can be had back with `rollback`; what is purged can't.

        Args:
            episode_ids: Which episodes, by id.
            feedback_ids: Which, by the id their feedback has where it came from.
            author: Which, by the expert who said it.
            where: Which, by a function of the `Episode`. Only episodes that meet all that is given
                are forgotten.
            purge: Whether to erase it for good: from every item and vector, with what was
                learned of it, from the file of an SQLite store, and from the checkpointer.
            checkpointer: For a purge: the checkpointer of the graphs that the feedback passed
                through. Every thread that carried it is deleted.
            by: Who asks for it.

        Returns:
            What was done, with the ids that name no episode; for a purge also where traces may be
            left that could not be reached.

        Raises:
            InvalidInputError: If nothing says which episodes, or a part can't be used.
            ChatModelError: If distilling again fails; the feedback is forgotten all the same.
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
        if not isinstance(purge, bool):
            raise InvalidInputError(f"purge: {purge!r} is neither True nor False.")
        if not (checkpointer is None or isinstance(checkpointer, BaseCheckpointSaver)):
            raise InvalidInputError(
                "checkpointer: give a LangGraph checkpointer, not a value of type "
                f"{type(checkpointer).__name__}."
            )
        if purge:
            forgotten = await erase(io, self.access, selection, checkpointer, author=by)
        elif checkpointer is not None:
            raise InvalidInputError("checkpointer: it is for a purge only: give `purge=True`.")
        else:
            forgotten = await forget(io, self.access, selection, author=by)
        if self._model is None:
            return forgotten
        return await redistill_after_forget(io, self.access, self._model.get, forgotten)

    forget, aforget = sync_async_methods(_forget)

    async def _revise(
        self, io: IO, episode_id: str, feedback: Feedback | Mapping[str, Any]
    ) -> Episode:
        """Change what an expert said, and with it what only the old word supported.

        Args:
            episode_id: Which episode.
            feedback: What is said instead: `value`, `rationale`, or both; what is not named stays.

        Returns:
            The episode as it stands now, pending until the next distilling.

        Raises:
            InvalidInputError: If there is no such episode, or what is said can't be used.
        """
        from memalign_graph.alignment.distill import redistill

        episode = await revise(io, self.access, episode_id, feedback)
        if self._model is not None and await self.access.pending_guidelines(io):
            await redistill(io, self.access, self._model.get())
        return episode

    revise, arevise = sync_async_methods(_revise)

    async def _consolidate(self, io: IO) -> dict[str, Any]:
        """Tidy the guidelines up: merge those that say the same, settle those that contradict.

        No guideline disappears except into one that names its sources; the older of two that
        contradict each other is retired, unless more experts support it. Guidelines that lost a
        source are distilled again. Needs the memory's `model`.

        Returns:
            What was done: `guidelines` (an entry for each that was merged, retired or distilled
            again, with `action`, `guideline_id`, `text`, `episode_ids`), `memory_version` and
            `warnings`.

        Raises:
            InvalidInputError: If the memory has no model.
            ChatModelError: If a call fails; nothing is changed then.
            ModelAnswerError: If an answer can't be used; nothing is changed then.
        """
        from memalign_graph.alignment.merge import consolidate_memory

        if self._model is None:
            raise InvalidInputError(
                "model: consolidating needs a chat model: open the memory with "
                f"JudgeMemory(..., model={DEFAULT_CHAT_MODEL!r})."
            )
        return await consolidate_memory(io, self.access, self._model.get())

    consolidate, aconsolidate = sync_async_methods(_consolidate)

    async def _history(self, io: IO) -> list[Commit]:
        """Return the commits, newest first: who, when, why, how much, and the version after it."""
        return await history.history(io, self.access)

    history, ahistory = sync_async_methods(_history)

    async def _at(self, io: IO, version: str) -> Snapshot:
        """Return the memory as it was, such as at a judgment's `memory_version`.

        Args:
            version: The version, as a judgment, a commit or `version()` names it.

        Returns:
            What it held.

        Raises:
            InvalidInputError: If the memory never had this version.
        """
        return await history.snapshot(io, self.access, version)

    at, aat = sync_async_methods(_at)

    async def _diff(self, io: IO, a: str, b: str | None = None) -> MemoryDiff:
        """Compare two versions.

        Args:
            a: The first version.
            b: The second; the one that stands, unless given.

        Returns:
            What was added, removed and changed from the first to the second.

        Raises:
            InvalidInputError: If the memory never had one of them.
        """
        return await history.diff(io, self.access, a, b)

    diff, adiff = sync_async_methods(_diff)

    async def _rollback(self, io: IO, version: str, *, author: str | None = None) -> Snapshot:
        """Make the memory again what it was at a version, in a new commit.

        Args:
            version: The version.
            author: Who asks for it.

        Returns:
            What the memory holds now; what was purged since is in `missing`, and stays away.

        Raises:
            InvalidInputError: If the memory never had this version.
        """
        return await history.rollback(io, self.access, version, author=author)

    rollback, arollback = sync_async_methods(_rollback)

    async def _export_jsonl(self, io: IO, path: str | PathLike[str] | None = None) -> str:
        """Write the memory as lines of JSON: guidelines, episodes, and their vectors.

        Args:
            path: A file to write it to as well.

        Returns:
            The text.
        """
        return _write(await jsonl.export_jsonl(io, self.access), path)

    export_jsonl, aexport_jsonl = sync_async_methods(_export_jsonl)

    async def _import_jsonl(
        self, io: IO, source: str | PathLike[str] | Iterable[str], *, author: str | None = None
    ) -> list[Episode]:
        """Bring in what `export_jsonl` wrote; ids, times and sources stay as they are.

        What is in this memory already stays where it is newer. Nothing is embedded again for the
        same embedder. All lines are checked before any is stored.

        Args:
            source: The text or its lines, or the path of a file.
            author: Who imports.

        Returns:
            The episodes imported, as they stand now.

        Raises:
            InvalidInputError: If a line can't be used, by its number.
        """
        lines = _lines(source)
        return await jsonl.import_jsonl(io, self.access, lines, author=author)

    import_jsonl, aimport_jsonl = sync_async_methods(_import_jsonl)

    async def _trust(
        self, io: IO, *, decide: Decide = "auto", target_agreement: float = 0.9
    ) -> Trust:
        """Tell from which confidence on `review="uncertain"` now asks nobody.

        Args:
            decide: What the judge's values come from, as its graph was built.
            target_agreement: How often a judgment that nobody is asked about is to agree with the
                experts, above 0 and below 1.

        Returns:
            The threshold, the agreement and the share of past decisions above it, and how many
            decisions that rests on: for each verdict, and summed up. Decisions count that the judge
            made which gave the newest verdict in memory.

        Raises:
            InvalidInputError: If an option can't be used.
            EmbeddingError: If an embedding call fails; one is made only where memory was filled
                with another embedder.
        """
        # Imported where it is needed: evidence is built on memory.
        from memalign_graph.evidence.review_policy import current_trust
        from memalign_graph.settings import Uncertain

        if decide not in get_args(Decide):
            known = ", ".join(map(repr, get_args(Decide)))
            raise InvalidInputError(f"decide: {decide!r} is not known: give one of {known}.")
        target = Uncertain(target_agreement=target_agreement).target_agreement
        return await current_trust(io, self.access, decide, target)

    trust, atrust = sync_async_methods(_trust)

    async def _review_report(
        self, io: IO, *, since: date | None = None, until: date | None = None
    ) -> ReviewReport:
        """Report what `review="uncertain"` asked in the last 90 days, why, and what came of it.

        Args:
            since: The first day, in UTC; the log's first unless given.
            until: The last day; the log's last unless given.

        Returns:
            In all and by day: coverage, questions and their reasons, and how often the judge agreed
            with the experts, on all that was asked and on what was asked by chance alone.

        Raises:
            InvalidInputError: If a day is none, or the last one is before the first.
        """
        return await review_report.review_report(io, self.access, since=since, until=until)

    review_report, areview_report = sync_async_methods(_review_report)

    async def _pass_rate(
        self,
        io: IO,
        *,
        by: GroupBy | None = None,
        passes: Passes | None = None,
        answered_at_random: bool = False,
    ) -> PassRate:
        """Estimate how many of the judgments that are kept experts would pass.

        By the judge's values on all of them, corrected by the experts' values on those that
        `review="uncertain"` drew at random. Answers to other questions are left out: doubtful cases
        are no random sample. On a numeric scale without `passes` it is the experts' mean.

        Args:
            by: What to group by, too: `day`, `week`, a field such as `inputs.region`, or a function
                of the `Example`.
            passes: Which values pass: the lowest that does, a set of values, or a function of the
                value. True passes on a boolean scale; other scales but numeric ones need it.
            answered_at_random: True to count all answers: where experts answered every judgment, or
                some that were drawn at random.

        Returns:
            The rate, the judge's own rate and that of the labels alone, each with its 95 %
            interval, in all and by group.

        Raises:
            InvalidInputError: If an argument can't be used.
        """
        return await pass_rate(
            io, self.access, by=by, passes=passes, answered_at_random=answered_at_random
        )

    pass_rate, apass_rate = sync_async_methods(_pass_rate)


def _ids(value: Any, name: str) -> Sequence[str] | None:
    if value is None:
        return None
    if not isinstance(value, Iterable):
        raise InvalidInputError(f"{name}: give an id, which is text, or several.")
    ids = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(each, str) for each in ids):
        raise InvalidInputError(f"{name}: an id is text: give one, or several.")
    return ids


def _write(text: str, path: str | PathLike[str] | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _lines(source: Any) -> Iterable[str]:
    if isinstance(source, str) and (not source.strip() or source.lstrip().startswith("{")):
        return source.split("\n")
    if isinstance(source, str | PathLike):
        try:
            return Path(source).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"source: {str(source)!r} can't be read: {error}") from error
    if isinstance(source, Iterable) and not isinstance(source, bytes | Mapping):
        return source
    raise InvalidInputError("source: give the text of an export, its lines, or a file's Path.")
