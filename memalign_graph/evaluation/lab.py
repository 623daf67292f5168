"""What every evaluation is made of: a judge that learns from some feedback and judges some cases.

The graphs are those that are deployed, with all their options; only their models are wrapped, so
that answers are kept, and their memories lie in stores of their own that go when it is over.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables.config import set_config_context
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from memalign_graph.alignment.report import AlignmentReport
from memalign_graph.errors import InvalidInputError, ModelAnswerError
from memalign_graph.evaluation.answers import (
    Account,
    KeptEmbeddings,
    Spent,
    drop_answers,
    note_answers,
    with_kept_answers,
)
from memalign_graph.evaluation.cases import check_count
from memalign_graph.evaluation.progress import Progress, ProgressLike
from memalign_graph.evaluation.variants import Variant
from memalign_graph.io import IO
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.models import EmbeddingsLike, embed_texts, resolve_chat_model
from memalign_graph.runtime import DEFAULT_MAX_CONCURRENCY
from memalign_graph.types import Criterion, Example, Feedback, Judgment

_EMBED_TEXTS = 200
"""How many texts one embedding request has."""

CacheLike = BaseStore | str | Path | None
"""Where answers are kept: a LangGraph store, a file, or None for as long as the call lasts."""


@dataclass
class Learned:
    """A memory that an evaluation made."""

    memory: JudgeMemory
    """The memory."""

    store: BaseStore
    """Its store."""

    spent: Spent = field(default_factory=Spent)
    """What learning took so far."""

    report: AlignmentReport | None = None
    """What the last alignment did."""


@dataclass(frozen=True)
class Outcome:
    """What came of judging one case."""

    judgment: Judgment | None
    """The judgment; None if the model gave no answer that can be used."""

    failure: str | None = None
    """Why there is none."""


class Lab:
    """One evaluation's models, memories and progress."""

    def __init__(
        self,
        criterion: Criterion,
        embeddings: EmbeddingsLike,
        *,
        kept: BaseStore,
        limit: int,
        progress: Progress,
    ) -> None:
        """Set it up; nothing is asked of a model yet."""
        self.criterion = criterion
        """What is judged."""
        self.limit = limit
        """How much may be under way at a time."""
        self.progress = progress
        """Told of each step."""
        self._kept = kept
        self.embeddings = KeptEmbeddings(embeddings, kept)
        """What finds similar cases; no text is embedded twice."""
        self._accounts: dict[str, Account] = {}
        self._resolved: dict[str, BaseChatModel] = {}
        self._graphs: dict[tuple[str, int], Any] = {}

    def spent(self, purpose: str) -> Spent:
        """Return what was asked of models for a purpose so far."""
        return self._accounts[purpose].spent if purpose in self._accounts else Spent()

    def model(self, model: BaseChatModel | str, purpose: str) -> BaseChatModel:
        """Return a chat model whose answers are kept, and counted by what they are for."""
        account = self._accounts.setdefault(purpose, Account())
        if isinstance(model, str):
            # Once for all purposes: each has clients of its own.
            if model not in self._resolved:
                self._resolved[model] = resolve_chat_model(model)
            model = self._resolved[model]
        return with_kept_answers(model, self._kept, account)

    def check(self, variant: Variant) -> None:
        """Check a way of judging, before any model is called."""
        for model in (variant.judge.model, variant.judge.distill_model):
            if model is not None:
                self.model(model, "check")

    async def embed(self, io: IO, examples: Iterable[Example]) -> None:
        """Embed examples once, before memories that are made side by side each ask for them."""
        texts = list(dict.fromkeys(retrieval_text(one)[0] for one in examples))
        for start in range(0, len(texts), _EMBED_TEXTS):
            await embed_texts(io, self.embeddings, texts[start : start + _EMBED_TEXTS])

    def empty(self) -> Learned:
        """Return a memory that has learned nothing."""
        store = InMemoryStore()
        memory = JudgeMemory(store, self.criterion, embeddings=self.embeddings)
        return Learned(memory=memory, store=store)

    async def learn(
        self,
        io: IO,
        variant: Variant,
        learned: Learned,
        feedback: Sequence[Feedback],
        *,
        beside: int = 1,
    ) -> Learned:
        """Align a memory with feedback, by the alignment graph."""
        purpose = f"learn {id(learned)}"
        judge = variant.judge
        graph = variant.alignment_graph(
            self.model(judge.model, purpose),
            self.model(judge.distill_model or judge.model, purpose),
            self.embeddings,
        ).compile(store=learned.store)
        given = {"feedback": [one.model_dump(mode="json") for one in feedback]}
        config: Any = {"max_concurrency": max(self.limit // beside, 1)}
        noted = note_answers()
        try:
            result = await _apart(io, graph, given, config)
        except ModelAnswerError:
            await drop_answers(io, self._kept, noted)
            raise
        learned.report = AlignmentReport.model_validate(result["report"])
        learned.spent = self.spent(purpose)
        self.progress.tick()
        return learned

    async def judge(self, io: IO, variant: Variant, learned: Learned, example: Example) -> Outcome:
        """Judge an example, by the judge graph."""
        graph = self._graph(variant, learned)
        given = example.to_json()
        # Others are judged beside it: all of them together keep to the limit.
        config: Any = {"max_concurrency": 1} if variant.judge.swap else {}
        noted = note_answers()
        try:
            result = await _apart(io, graph, given, config)
        except ModelAnswerError as error:
            await drop_answers(io, self._kept, noted)
            outcome = Outcome(None, str(error))
        else:
            outcome = Outcome(Judgment.model_validate(result["judgment"]))
        self.progress.tick()
        return outcome

    async def judge_all(
        self, io: IO, tasks: Sequence[tuple[Variant, Learned, Example]]
    ) -> list[Outcome]:
        """Judge many, side by side."""
        self.progress.expect(len(tasks))
        outcomes: list[Outcome] = await io.gather(
            [self.judge(io, *task) for task in tasks], self.limit
        )
        return outcomes

    def _graph(self, variant: Variant, learned: Learned) -> Any:
        key = (variant.name, id(learned))
        if key not in self._graphs:
            model = self.model(variant.judge.model, f"judge {variant.name}")
            graph = variant.judge_graph(model, self.embeddings)
            self._graphs[key] = graph.compile(store=learned.store)
        return self._graphs[key]


async def _apart(io: IO, graph: Any, given: dict[str, Any], config: Any) -> Any:
    """Run a graph as if nothing were around it."""

    def blocking() -> Any:
        with set_config_context({}) as context:
            return context.run(graph.invoke, given, config)

    async def awaiting() -> Any:
        with set_config_context({}) as context:
            return await asyncio.create_task(graph.ainvoke(given, config), context=context)

    return await io.call(blocking, awaiting)


@contextmanager
def open_lab(
    criterion: Criterion,
    embeddings: EmbeddingsLike,
    *,
    cache: CacheLike,
    max_concurrency: int | None,
    progress: ProgressLike,
) -> Iterator[Lab]:
    """Open a lab for as long as the block lasts."""
    if not isinstance(criterion, Criterion):
        raise InvalidInputError(
            "criterion: give a Criterion(name=..., instructions=...), not a value of type "
            f"{type(criterion).__name__}."
        )
    limit = DEFAULT_MAX_CONCURRENCY if max_concurrency is None else max_concurrency
    check_count("max_concurrency", limit)
    with ExitStack() as stack:
        kept = _opened(cache, stack)
        told = Progress(progress)
        stack.callback(told.close)
        yield Lab(criterion, embeddings, kept=kept, limit=limit, progress=told)


def _opened(cache: CacheLike, stack: ExitStack) -> BaseStore:
    if cache is None:
        return InMemoryStore()
    if isinstance(cache, BaseStore):
        return cache
    if not isinstance(cache, str | Path):
        raise InvalidInputError(
            "cache: give a LangGraph store, or the path of a file, not a value of type "
            f"{type(cache).__name__}."
        )
    if Path(cache).is_dir():
        raise InvalidInputError(f"cache: {str(cache)!r} is a folder: give the path of a file.")
    from memalign_graph.local import open_local_store

    return stack.enter_context(open_local_store(cache))
