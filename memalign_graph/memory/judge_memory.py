"""`JudgeMemory`: one criterion's memory in any LangGraph store, sync and async."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from langgraph.store.base import BaseStore
from pydantic import ValidationError

from memalign_graph.effects import Operation, arun, run
from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.memory import by_hand, changes
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.changes import Forgotten
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, MemoryLayout, check_namespace
from memalign_graph.memory.recall import recall
from memalign_graph.models import DEFAULT_EMBEDDINGS, Embedder, EmbeddingsLike
from memalign_graph.types import Criterion, Episode, Example, Feedback, Guideline, RecalledExample

FeedbackLike = Feedback | Mapping[str, Any]
"""Feedback, or its fields."""

ExampleLike = Example | Mapping[str, Any]
"""An example, or its fields."""


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
    ) -> None:
        """Open a memory; nothing is read or written yet.

        Args:
            store: Any LangGraph store; an index of its own is neither needed nor used.
            criterion: What the memory is about.
            namespace: Keeps memories apart, say of two teams; the criterion's name is added to it.
            embeddings: LangChain embeddings, a function from texts to vectors, or a
                `"provider:name"` string, resolved when first needed.

        Raises:
            InvalidInputError: If there is no store, or a label of the namespace can't be used.
        """
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
        self.criterion = criterion
        self._access = MemoryAccess(
            store=store,
            criterion=criterion,
            layout=MemoryLayout((*check_namespace(namespace), criterion.name)),
            embedder=Embedder(embeddings),
        )

    @property
    def access(self) -> MemoryAccess:
        """The memory as operations reach it, for nodes that compose their own."""
        return self._access

    @overload
    def remember(self, feedback: FeedbackLike) -> Episode: ...
    @overload
    def remember(self, feedback: Sequence[FeedbackLike]) -> list[Episode]: ...
    def remember(self, feedback: FeedbackLike | Sequence[FeedbackLike]) -> Episode | list[Episode]:
        """Store feedback as episodes that await distilling.

        The same word again changes nothing; another word of the same author on the same example
        replaces the episode.

        Args:
            feedback: One piece of feedback, or several; as `Feedback` or as its fields.

        Returns:
            The episode as it stands now, or one for each.

        Raises:
            InvalidInputError: If feedback can't be used; nothing is stored then.
            EmbeddingError: If an embedding call fails; nothing is stored then.
        """
        return run(self._remember(feedback))

    @overload
    async def aremember(self, feedback: FeedbackLike) -> Episode: ...
    @overload
    async def aremember(self, feedback: Sequence[FeedbackLike]) -> list[Episode]: ...
    async def aremember(
        self, feedback: FeedbackLike | Sequence[FeedbackLike]
    ) -> Episode | list[Episode]:
        """Async twin of `remember`."""
        return await arun(self._remember(feedback))

    def recall(self, example: ExampleLike, k: int = 5) -> list[RecalledExample]:
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
        return run(self._recall(example, k))

    async def arecall(self, example: ExampleLike, k: int = 5) -> list[RecalledExample]:
        """Async twin of `recall`."""
        return await arun(self._recall(example, k))

    def episodes(self) -> list[Episode]:
        """Return all episodes, oldest first."""
        return run(self._access.all_episodes())

    async def aepisodes(self) -> list[Episode]:
        """Async twin of `episodes`."""
        return await arun(self._access.all_episodes())

    def guidelines(self) -> list[Guideline]:
        """Return all guidelines, in the order a judge reads them."""
        return run(self._access.all_guidelines())

    async def aguidelines(self) -> list[Guideline]:
        """Async twin of `guidelines`."""
        return await arun(self._access.all_guidelines())

    def version(self) -> str:
        """Return the memory's version: a digest of its live items and their revisions."""
        return run(self._version())

    async def aversion(self) -> str:
        """Async twin of `version`."""
        return await arun(self._version())

    def add_guideline(self, text: str, *, author: str | None = None) -> Guideline:
        """Write a guideline by hand.

        Args:
            text: The rule, a sentence of up to 2,000 characters.
            author: Who writes it.

        Returns:
            The guideline; the one that stands, if it stands in these words already.

        Raises:
            InvalidInputError: If the text can't be used.
        """
        return run(by_hand.add_guideline(self._access, text, author=author))

    async def aadd_guideline(self, text: str, *, author: str | None = None) -> Guideline:
        """Async twin of `add_guideline`."""
        return await arun(by_hand.add_guideline(self._access, text, author=author))

    def edit_guideline(
        self, guideline_id: str, text: str, *, author: str | None = None
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
        return run(by_hand.edit_guideline(self._access, guideline_id, text, author=author))

    async def aedit_guideline(
        self, guideline_id: str, text: str, *, author: str | None = None
    ) -> Guideline:
        """Async twin of `edit_guideline`."""
        return await arun(by_hand.edit_guideline(self._access, guideline_id, text, author=author))

    def remove_guideline(self, guideline_id: str, *, author: str | None = None) -> Guideline:
        """Take a guideline away; the episodes it came from stay.

        Args:
            guideline_id: Which one.
            author: Who takes it away.

        Returns:
            The guideline as it was.

        Raises:
            InvalidInputError: If there is no such guideline.
        """
        return run(by_hand.remove_guideline(self._access, guideline_id, author=author))

    async def aremove_guideline(self, guideline_id: str, *, author: str | None = None) -> Guideline:
        """Async twin of `remove_guideline`."""
        return await arun(by_hand.remove_guideline(self._access, guideline_id, author=author))

    def forget(self, episode_ids: Iterable[str] | str, *, author: str | None = None) -> Forgotten:
        """Take episodes back, and every guideline that rests on them alone.

        A guideline that has other sources stays and names only those; they become pending, so that
        the next distilling reads them again.

        Args:
            episode_ids: Which episodes.
            author: Who asks for it.

        Returns:
            What was done, with the ids that name no episode.
        """
        return run(changes.forget(self._access, _ids(episode_ids), author=author))

    async def aforget(
        self, episode_ids: Iterable[str] | str, *, author: str | None = None
    ) -> Forgotten:
        """Async twin of `forget`."""
        return await arun(changes.forget(self._access, _ids(episode_ids), author=author))

    def _remember(
        self, feedback: FeedbackLike | Sequence[FeedbackLike]
    ) -> Operation[Episode | list[Episode]]:
        if isinstance(feedback, Feedback | Mapping):
            [episode] = yield from changes.remember(self._access, [read_feedback(feedback)])
            return episode
        return (yield from changes.remember(self._access, [read_feedback(f) for f in feedback]))

    def _recall(self, example: ExampleLike, k: int) -> Operation[list[RecalledExample]]:
        if not isinstance(k, int) or k < 0:
            raise InvalidInputError(f"k: {k!r} is not a whole number from 0 on.")
        found = yield from recall(self._access, read_example(example), k)
        return found.examples

    def _version(self) -> Operation[str]:
        view = yield from self._access.refresh()
        return view.version


def read_feedback(feedback: FeedbackLike) -> Feedback:
    """Read feedback from its fields.

    Args:
        feedback: Feedback, or its fields.

    Returns:
        The feedback.

    Raises:
        InvalidInputError: If it can't be used, in one sentence that names the field.
    """
    try:
        return Feedback.model_validate(
            dict(feedback) if isinstance(feedback, Mapping) else feedback
        )
    except ValidationError as error:
        raise InvalidInputError(explain(error)) from error


def read_example(example: ExampleLike) -> Example:
    """Read an example from its fields.

    Args:
        example: An example, or its fields.

    Returns:
        The example.

    Raises:
        InvalidInputError: If it can't be used, in one sentence that names the field.
    """
    try:
        return Example.model_validate(dict(example) if isinstance(example, Mapping) else example)
    except ValidationError as error:
        raise InvalidInputError(explain(error)) from error


def _ids(episode_ids: Iterable[str] | str) -> Iterable[str]:
    return [episode_ids] if isinstance(episode_ids, str) else episode_ids
