"""The part of `JudgeMemory` that outlives a single judgment: taking back, going back, moving."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from memalign_graph.errors import InvalidInputError
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory import history, portable
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.history import Commit, MemoryDiff, Snapshot
from memalign_graph.memory.operations import Forgotten, Selection, check_name, forget, revise
from memalign_graph.memory.purge import purge
from memalign_graph.models import DEFAULT_CHAT_MODEL, BaseChatModel, OncePerLoop
from memalign_graph.types import Episode, Feedback

Where = Callable[[Episode], Any]
"""Tells whether an episode is meant."""


class MemoryLife:
    """Forgetting and revising, versions, growth, export and import; see `JudgeMemory`."""

    _access: MemoryAccess
    _model: OncePerLoop[BaseChatModel] | None

    def forget(
        self,
        episode_ids: Iterable[str] | str | None = None,
        *,
        feedback_ids: Iterable[str] | str | None = None,
        author: str | None = None,
        where: Where | None = None,
        purge: bool = False,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        by: str | None = None,
    ) -> Forgotten:
        """Take feedback back, and what was learned from it alone.

        Guidelines that rest on it alone go, and what they had replaced comes back. Those with other
        sources are `pending` and distilled again from these alone: at once if the memory has a
        `model`, else by the next alignment or review. What is forgotten can be had back with
        `rollback`; what is purged can't.

        Args:
            episode_ids: Which episodes, by id.
            feedback_ids: Which, by the id their feedback has where it came from.
            author: Which, by the expert who said it.
            where: Which, by a function of the `Episode`. Only episodes that meet all that is given
                are forgotten.
            purge: Whether to erase it for good: with every lesson that read it and its vectors,
                from the file of an SQLite store, and from the checkpointer.
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
        selection = _selection(episode_ids, feedback_ids, author, where)
        return run(self._forget(BLOCKING, selection, purge, checkpointer, by))

    async def aforget(
        self,
        episode_ids: Iterable[str] | str | None = None,
        *,
        feedback_ids: Iterable[str] | str | None = None,
        author: str | None = None,
        where: Where | None = None,
        purge: bool = False,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        by: str | None = None,
    ) -> Forgotten:
        """Async twin of `forget`."""
        selection = _selection(episode_ids, feedback_ids, author, where)
        return await self._forget(AWAITING, selection, purge, checkpointer, by)

    def revise(self, episode_id: str, feedback: Feedback | Mapping[str, Any]) -> Episode:
        """Change what an expert said, and with it what only the old word supported.

        Args:
            episode_id: Which episode.
            feedback: What is said instead: `value`, `rationale`, or both; what is not named stays.

        Returns:
            The episode as it stands now, pending until the next distilling.

        Raises:
            InvalidInputError: If there is no such episode, or what is said can't be used.
        """
        return run(self._revise(BLOCKING, episode_id, feedback))

    async def arevise(self, episode_id: str, feedback: Feedback | Mapping[str, Any]) -> Episode:
        """Async twin of `revise`."""
        return await self._revise(AWAITING, episode_id, feedback)

    def consolidate(self) -> dict[str, Any]:
        """Tidy the guidelines up: merge those that say the same, settle those that contradict.

        One that says what another says goes, and that one names its sources; of two that contradict
        each other the older goes. Guidelines that lost a source are distilled again. Needs the
        memory's `model`.

        Returns:
            What was done: `guidelines` (an entry for each that was merged, retired or distilled
            again, with `action`, `guideline_id`, `text`, `episode_ids`) and `memory_version`.

        Raises:
            InvalidInputError: If the memory has no model.
            ChatModelError: If a call fails; nothing is changed then.
            ModelAnswerError: If an answer can't be used; nothing is changed then.
        """
        return run(self._consolidate(BLOCKING))

    async def aconsolidate(self) -> dict[str, Any]:
        """Async twin of `consolidate`."""
        return await self._consolidate(AWAITING)

    def history(self) -> list[Commit]:
        """Return the commits, newest first: who, when, why, how much, and the version after it."""
        return run(history.history(BLOCKING, self._access))

    async def ahistory(self) -> list[Commit]:
        """Async twin of `history`."""
        return await history.history(AWAITING, self._access)

    def at(self, version: str) -> Snapshot:
        """Return the memory as it was, such as at a judgment's `memory_version`.

        Args:
            version: The version, as a judgment, a commit or `version()` names it.

        Returns:
            What it held.

        Raises:
            InvalidInputError: If the memory never had this version.
        """
        return run(history.snapshot(BLOCKING, self._access, version))

    async def aat(self, version: str) -> Snapshot:
        """Async twin of `at`."""
        return await history.snapshot(AWAITING, self._access, version)

    def diff(self, a: str, b: str | None = None) -> MemoryDiff:
        """Compare two versions.

        Args:
            a: The first version.
            b: The second; the one that stands, unless given.

        Returns:
            What was added, removed and changed from the first to the second.

        Raises:
            InvalidInputError: If the memory never had one of them.
        """
        return run(history.diff(BLOCKING, self._access, a, b))

    async def adiff(self, a: str, b: str | None = None) -> MemoryDiff:
        """Async twin of `diff`."""
        return await history.diff(AWAITING, self._access, a, b)

    def rollback(self, version: str, *, author: str | None = None) -> Snapshot:
        """Make the memory again what it was at a version, in a new commit.

        Args:
            version: The version.
            author: Who asks for it.

        Returns:
            What the memory holds now; what was purged since is in `missing`, and stays away.

        Raises:
            InvalidInputError: If the memory never had this version.
        """
        return run(history.rollback(BLOCKING, self._access, version, author=author))

    async def arollback(self, version: str, *, author: str | None = None) -> Snapshot:
        """Async twin of `rollback`."""
        return await history.rollback(AWAITING, self._access, version, author=author)

    def export_jsonl(self, path: str | PathLike[str] | None = None) -> str:
        """Write the memory as lines of JSON: guidelines, episodes, and their vectors.

        Args:
            path: A file to write it to as well.

        Returns:
            The text.
        """
        return _write(run(portable.export_jsonl(BLOCKING, self._access)), path)

    async def aexport_jsonl(self, path: str | PathLike[str] | None = None) -> str:
        """Async twin of `export_jsonl`."""
        return _write(await portable.export_jsonl(AWAITING, self._access), path)

    def import_jsonl(
        self, source: str | PathLike[str] | Iterable[str], *, author: str | None = None
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
        return run(portable.import_jsonl(BLOCKING, self._access, _lines(source), author=author))

    async def aimport_jsonl(
        self, source: str | PathLike[str] | Iterable[str], *, author: str | None = None
    ) -> list[Episode]:
        """Async twin of `import_jsonl`."""
        return await portable.import_jsonl(AWAITING, self._access, _lines(source), author=author)

    async def _forget(
        self,
        io: IO,
        selection: Selection,
        purges: bool,  # noqa: FBT001 - as `forget` names it
        checkpointer: BaseCheckpointSaver[Any] | None,
        by: str | None,
    ) -> Forgotten:
        # Imported where it is needed: alignment is built on memory.
        from memalign_graph.alignment.redistill import redistilled

        by = check_name(by, "by")
        if not isinstance(purges, bool):
            raise InvalidInputError(f"purge: {purges!r} is neither True nor False.")
        if purges:
            forgotten = await purge(io, self._access, selection, checkpointer, author=by)
        elif checkpointer is not None:
            raise InvalidInputError("checkpointer: it is for a purge only: give `purge=True`.")
        else:
            forgotten = await forget(io, self._access, selection, author=by)
        if self._model is None:
            return forgotten
        return await redistilled(io, self._access, self._model.get, forgotten)

    async def _revise(
        self, io: IO, episode_id: str, feedback: Feedback | Mapping[str, Any]
    ) -> Episode:
        from memalign_graph.alignment.redistill import redistill

        episode = await revise(io, self._access, episode_id, feedback)
        pending = await self._access.outdated_guidelines(io)
        if self._model is not None and pending:
            await redistill(io, self._access, self._model.get())
        return episode

    async def _consolidate(self, io: IO) -> dict[str, Any]:
        from memalign_graph.alignment.consolidate import consolidate_memory

        if self._model is None:
            raise InvalidInputError(
                "model: consolidating needs a chat model: open the memory with "
                f"JudgeMemory(..., model={DEFAULT_CHAT_MODEL!r})."
            )
        return await consolidate_memory(io, self._access, self._model.get())


def _selection(
    episode_ids: Iterable[str] | str | None,
    feedback_ids: Iterable[str] | str | None,
    author: str | None,
    where: Where | None,
) -> Selection:
    return Selection(
        episode_ids=_ids(episode_ids, "episode_ids"),
        feedback_ids=_ids(feedback_ids, "feedback_ids"),
        author=check_name(author, "author"),
        where=where,
    )


def _ids(given: Any, name: str) -> Sequence[str] | None:
    if given is None:
        return None
    ids = [given] if isinstance(given, str) else given
    if not isinstance(ids, Iterable):
        raise InvalidInputError(f"{name}: give an id, which is text, or several.")
    found = list(ids)
    if any(not isinstance(one, str) for one in found):
        raise InvalidInputError(f"{name}: an id is text: give one, or several.")
    return found


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
