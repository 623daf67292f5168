"""`JudgeMemory`: one criterion's memory in any LangGraph store, sync and async."""

from collections.abc import Iterable, Mapping, Sequence
from typing import overload

from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory import operations
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.judgments import KeptJudgment, kept_judgments
from memalign_graph.memory.layout import DEFAULT_NAMESPACE, MemoryLayout, check_namespace
from memalign_graph.memory.life import MemoryLife
from memalign_graph.memory.oversight import MemoryOversight
from memalign_graph.memory.recall import recall
from memalign_graph.models import (
    DEFAULT_EMBEDDINGS,
    BaseChatModel,
    Embedder,
    EmbeddingsLike,
    OncePerLoop,
    is_chat_model,
    resolve_chat_model,
)
from memalign_graph.reading import ExampleLike, FeedbackLike, read_example, read_feedback
from memalign_graph.types import Criterion, Episode, Feedback, Guideline, RecalledExample


class JudgeMemory(MemoryLife, MemoryOversight):
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
        model: BaseChatModel | str | None = None,
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
                "model: give a chat model or a string such as 'openai:gpt-4.1-mini', not a value "
                f"of type {type(model).__name__}."
            )
        self.criterion = criterion
        self._model = None if model is None else OncePerLoop(lambda: resolve_chat_model(model))
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
        return run(self._remember(BLOCKING, feedback))

    @overload
    async def aremember(self, feedback: FeedbackLike) -> Episode: ...
    @overload
    async def aremember(self, feedback: Sequence[FeedbackLike]) -> list[Episode]: ...
    async def aremember(
        self, feedback: FeedbackLike | Sequence[FeedbackLike]
    ) -> Episode | list[Episode]:
        """Async twin of `remember`."""
        return await self._remember(AWAITING, feedback)

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
        return run(self._recall(BLOCKING, example, k))

    async def arecall(self, example: ExampleLike, k: int = 5) -> list[RecalledExample]:
        """Async twin of `recall`."""
        return await self._recall(AWAITING, example, k)

    def episodes(self) -> list[Episode]:
        """Return all episodes, oldest first."""
        return run(self._access.all_episodes(BLOCKING))

    async def aepisodes(self) -> list[Episode]:
        """Async twin of `episodes`."""
        return await self._access.all_episodes(AWAITING)

    def guidelines(self) -> list[Guideline]:
        """Return the guidelines, in the order a judge reads them.

        What was replaced, by what and why, is in `history` and `diff`.
        """
        return run(self._access.guidelines(BLOCKING))

    async def aguidelines(self) -> list[Guideline]:
        """Async twin of `guidelines`."""
        return await self._access.guidelines(AWAITING)

    def judgments(self, *, waiting: bool = False) -> list[KeptJudgment]:
        """Return the judgments that are kept for feedback, those that go first before the others.

        They are no part of the memory's content: its version does not tell of them, and an export
        leaves them out.

        Args:
            waiting: True to leave out those on which an expert has said something.

        Returns:
            The judgments.
        """
        return run(kept_judgments(BLOCKING, self._access, waiting=waiting))

    async def ajudgments(self, *, waiting: bool = False) -> list[KeptJudgment]:
        """Async twin of `judgments`."""
        return await kept_judgments(AWAITING, self._access, waiting=waiting)

    def version(self) -> str:
        """Return the memory's version: a digest of its live items and their revisions."""
        return run(self._version(BLOCKING))

    async def aversion(self) -> str:
        """Async twin of `version`."""
        return await self._version(AWAITING)

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
        return run(operations.add_guideline(BLOCKING, self._access, text, author=author))

    async def aadd_guideline(self, text: str, *, author: str | None = None) -> Guideline:
        """Async twin of `add_guideline`."""
        return await operations.add_guideline(AWAITING, self._access, text, author=author)

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
        return run(
            operations.edit_guideline(BLOCKING, self._access, guideline_id, text, author=author)
        )

    async def aedit_guideline(
        self, guideline_id: str, text: str, *, author: str | None = None
    ) -> Guideline:
        """Async twin of `edit_guideline`."""
        return await operations.edit_guideline(
            AWAITING, self._access, guideline_id, text, author=author
        )

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
        return run(operations.remove_guideline(BLOCKING, self._access, guideline_id, author=author))

    async def aremove_guideline(self, guideline_id: str, *, author: str | None = None) -> Guideline:
        """Async twin of `remove_guideline`."""
        return await operations.remove_guideline(
            AWAITING, self._access, guideline_id, author=author
        )

    async def _remember(
        self, io: IO, feedback: FeedbackLike | Sequence[FeedbackLike]
    ) -> Episode | list[Episode]:
        if isinstance(feedback, Feedback | Mapping | str) or not isinstance(feedback, Iterable):
            stored = await operations.remember(io, self._access, [read_feedback(feedback)])
            return stored.episodes[0]
        given = [read_feedback(one) for one in feedback]
        return (await operations.remember(io, self._access, given)).episodes

    async def _recall(self, io: IO, example: ExampleLike, k: int) -> list[RecalledExample]:
        if not isinstance(k, int) or k < 0:
            raise InvalidInputError(f"k: {k!r} is not a whole number from 0 on.")
        found = await recall(io, self._access, read_example(example), k)
        return found.examples

    async def _version(self, io: IO) -> str:
        view = await self._access.refresh(io)
        return view.version
