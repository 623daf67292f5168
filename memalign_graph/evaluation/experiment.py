"""Judges measured on cases that they did not learn from: learn, judge, score.

The graphs are those that are deployed, with all their options; only their models are wrapped, so
that answers are cached and counted, and their memories lie in stores of their own.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from langchain_core.runnables.config import set_config_context
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import Field, PlainValidator

from memalign_graph.alignment.report import AlignmentReport
from memalign_graph.errors import InvalidInputError, ModelAnswerError, needs_extra
from memalign_graph.evaluation.cache import (
    AnswerCache,
    CachedEmbeddings,
    Ledger,
    drop_answers,
    note_answers,
)
from memalign_graph.evaluation.dataset import (
    GroupBy,
)
from memalign_graph.evaluation.results import (
    ALIGNED,
    BASE,
    ExpertLabel,
)
from memalign_graph.graphs import create_alignment_graph, create_judge_graph
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.models import (
    BaseChatModel,
    embed_texts,
    model_key,
    resolve_chat_model,
)
from memalign_graph.runtime import DEFAULT_MAX_CONCURRENCY
from memalign_graph.settings import Alignment, Guard, Judge, JudgeOptions, LearnFrom, Settings
from memalign_graph.types import Criterion, Episode, Example, Feedback, Judgment

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SIZES = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""How much feedback memory has learned at each step of a learning curve."""

_EMBED_TEXTS = 200


def _cache_place(cache: Any) -> Any:
    if not (cache is None or isinstance(cache, BaseStore | str | Path)):
        kind = type(cache).__name__
        raise ValueError(f"give a LangGraph store, or the path of a file, not a value of {kind}.")
    if isinstance(cache, str | Path) and Path(cache).is_dir():
        raise ValueError(f"{str(cache)!r} is a folder: give the path of a file.")
    return cache


def _progress(progress: Any) -> Any:
    if isinstance(progress, bool) or callable(progress):
        return progress
    raise ValueError(f"{progress!r} is neither True, False nor a function of (done, of).")


CacheLike = Annotated[BaseStore | str | Path | None, PlainValidator(_cache_place)]
ProgressLike = Annotated[bool | Callable[[int, int], None], PlainValidator(_progress)]


class Options(Settings):
    """How an evaluation is done, whatever is evaluated."""

    folds: int = Field(default=5, ge=2)
    """How many folds; each case is judged once."""

    learning_curve: bool = False
    """Whether to follow the judge as it learns, too; many more judgments."""

    sizes: Sequence[Annotated[int, Field(ge=1)]] = SIZES
    """How much feedback it has learned at each step of the curve; all of it is the last step."""

    test_share: float = Field(default=0.3, gt=0, lt=1)
    """How much of the items is set aside for the curve, where no test cases are told."""

    credit_cases: int = Field(default=0, ge=0)
    """On how many cases each guideline is left out: a call each; none unless told."""

    group_by: GroupBy = "example"
    """What is never both learned from and judged, and is drawn together for intervals: the same
    `example`, the same `inputs`, or what a function of an Example returns."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Shuffles items, and draws them for intervals."""

    resamples: int = Field(default=1_000, ge=0)
    """How many times items are drawn anew for intervals."""

    cache: CacheLike = None
    """Where models' answers are kept: a LangGraph store, or a file, which needs the extra `local`;
    for this call alone unless told."""

    max_concurrency: int | None = Field(default=None, ge=1)
    """How much is under way at a time; 32 unless told."""

    progress: ProgressLike = True
    """True for a progress bar, or a function of (done, of)."""


class EvaluationOptions(JudgeOptions, total=False):
    """The fields of `Options`, how is learned, and a judge's options, by name."""

    folds: int
    learning_curve: bool
    sizes: Sequence[int]
    test_share: float
    credit_cases: int
    group_by: GroupBy
    seed: int
    resamples: int
    cache: CacheLike
    max_concurrency: int | None
    progress: ProgressLike
    learn_from: LearnFrom
    guard: Guard | None
    batch_size: int


def both(
    operation: Callable[Concatenate[IO, P], Coroutine[Any, Any, R]],
) -> tuple[Callable[P, R], Callable[P, Coroutine[Any, Any, R]]]:
    """Make a blocking function and its async twin of an operation that is handed an `IO`."""

    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(operation(BLOCKING, *args, **kwargs))

    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        return await operation(AWAITING, *args, **kwargs)

    _, *others = signature(operation).parameters.values()
    name = operation.__name__.removeprefix("_")
    for made, its_name in ((function, name), (twin, f"a{name}")):
        update_wrapper(made, operation)
        made.__name__ = made.__qualname__ = its_name
        vars(made)["__signature__"] = signature(operation).replace(parameters=others)
    twin.__doc__ = f"Async twin of `{name}`."
    return function, twin


def read_options(options: Mapping[str, Any]) -> tuple[Options, dict[str, Any], dict[str, Any]]:
    """Divide keywords into those of the run, of learning, and of a judge."""
    learning_names = ("learn_from", "guard", "batch_size")
    learning = {name: options[name] for name in learning_names if name in options}
    given = {name: value for name, value in options.items() if name in Options.model_fields}
    judge = {name: options[name] for name in options if name not in {*learning, *given}}
    return Options(**given), learning, judge


def way_of(
    criterion: Criterion, learning: Mapping[str, Any], judge: Mapping[str, Any]
) -> Alignment:
    """Read one judge, and how it learns, from keywords."""
    way = Alignment(judge=Judge(criterion=criterion, **judge), **learning)
    if not has_memory(way.judge):
        raise InvalidInputError(
            "use_episodes: a judge without guidelines and episodes has no memory to evaluate: "
            'leave it one of them, or give decide="evidence".'
        )
    return way


def has_memory(judge: Judge) -> bool:
    """Tell whether a judge uses memory at all."""
    return judge.use_guidelines or judge.use_episodes or judge.decide == "evidence"


def without_memory(judge: Judge) -> Judge:
    """Return the same judge without memory."""
    return judge.but(use_guidelines=False, use_episodes=False, decide="verdict")


def ablations(judge: Judge) -> dict[str, Judge | Alignment]:
    """List the judges that lack a part of one, to be handed to `evaluate`."""
    return {
        BASE: without_memory(judge),
        "semantic only": judge.but(use_guidelines=True, use_episodes=False),
        "episodic only": judge.but(use_guidelines=False, use_episodes=True),
        "labels only": Alignment(judge=judge, learn_from="labels"),
        "words only": Alignment(judge=judge, learn_from="words"),
        ALIGNED: judge,
    }


class Progress:
    """A bar in the terminal, or a function that is told, from any thread."""

    def __init__(self, wanted: bool | Callable[[int, int], None]) -> None:  # noqa: FBT001 - a bar or none
        self._tell = wanted if callable(wanted) else None
        self._bar: Any = None
        if wanted is True:
            with needs_extra("evaluation", "a progress bar (`progress=False` needs none)"):
                from tqdm import tqdm
            self._bar = tqdm(total=0, unit="step", dynamic_ncols=True, leave=False)
        self._lock = threading.Lock()
        self._done = self._of = 0

    def step(self, done: int = 1, of: int = 0) -> None:
        """Say what is done, or that there is more to do."""
        with self._lock:
            self._done, self._of = self._done + done, self._of + of
            if self._bar is not None:
                self._bar.total = self._of
                self._bar.update(done)
                self._bar.refresh()
            if self._tell is not None:
                self._tell(self._done, self._of)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()


@dataclass
class Learned:
    """A memory that an evaluation made, in a store of its own."""

    memory: JudgeMemory
    report: AlignmentReport | None = None
    graphs: dict[tuple[str, str], Any] = field(default_factory=dict)


class Experiment:
    """One evaluation's cache, account and progress; what learns and judges with them."""

    def __init__(
        self, criterion: Criterion, options: Options, cache: BaseStore, progress: Progress
    ) -> None:
        self.criterion, self.options = criterion, options
        self.ledger, self.progress = Ledger(), progress
        self.limit = options.max_concurrency or DEFAULT_MAX_CONCURRENCY
        self._cache = cache
        self._resolved: dict[str, BaseChatModel] = {}

    def model(self, model: BaseChatModel | str, judge: str, stage: str) -> BaseChatModel:
        """Return a chat model whose answers are cached, and counted by what they are for."""
        if isinstance(model, str):
            if model not in self._resolved:
                self._resolved[model] = resolve_chat_model(model)
            model = self._resolved[model]
        cache = AnswerCache(self._cache, self.ledger, model_key(model), judge, stage)
        copied = model.model_copy(update={"cache": cache})
        # LangChain remembers how it named the model, also after its settings were changed.
        vars(copied).pop("_serialized", None)
        return copied

    def wrapped(self, name: str, judge: Judge, stage: str) -> Judge:
        """Return a judge whose models' answers are cached and counted."""
        distiller = judge.distill_model or judge.model
        return judge.but(
            model=self.model(judge.model, name, stage),
            distill_model=self.model(distiller, name, stage),
            embeddings=self.embeddings(name, judge, stage),
            keep_judgments=None,
        )

    def embeddings(self, name: str, judge: Judge, stage: str) -> CachedEmbeddings:
        """Return a judge's embeddings, cached and counted."""
        return CachedEmbeddings(judge.embeddings, self._cache, self.ledger, name, stage)

    async def embed(
        self, io: IO, name: str, judge: Judge, examples: Iterable[Example], stage: str = "learn"
    ) -> None:
        """Embed examples once, before memories that are made side by side each ask for them."""
        embeddings = self.embeddings(name, judge, stage)
        texts = list(dict.fromkeys(retrieval_text(example)[0] for example in examples))
        for start in range(0, len(texts), _EMBED_TEXTS):
            await embed_texts(io, embeddings, texts[start : start + _EMBED_TEXTS])

    def empty(self, name: str, judge: Judge, stage: str = "learn") -> Learned:
        """Return a memory that has learned nothing."""
        embeddings = self.embeddings(name, judge, stage)
        return Learned(JudgeMemory(InMemoryStore(), self.criterion, embeddings=embeddings))

    async def learn(
        self,
        io: IO,
        name: str,
        way: Alignment,
        learned: Learned,
        feedback: Sequence[Feedback],
        *,
        stage: str = "learn",
        beside: int = 1,
    ) -> Learned:
        """Align a memory with feedback, by the alignment graph."""
        judge = self.wrapped(name, way.judge, stage)
        learning = {key: value for key, value in way if key not in ("judge", "judge_cases")}
        # What weighs the judge's verdicts has to know them.
        judges = way.judge_cases or judge.decide == "evidence"
        graph = create_alignment_graph(
            self.criterion, judge_cases=judges, **learning, **judge.options
        ).compile(store=learned.memory.access.store)
        given = {"feedback": [item.model_dump(mode="json") for item in feedback]}
        config = {"max_concurrency": max(self.limit // beside, 1)}
        result = await self._invoke(io, graph, given, config)
        learned.report = AlignmentReport.model_validate(result["report"])
        self.progress.step()
        return learned

    async def judge(
        self, io: IO, name: str, way: Alignment, learned: Learned, example: Example, stage: str
    ) -> Judgment | str:
        """Judge an example, by the judge graph; where that gives none, tell why."""
        if (name, stage) not in learned.graphs:
            judge = self.wrapped(name, way.judge, stage)
            graph = create_judge_graph(self.criterion, **judge.options)
            learned.graphs[name, stage] = graph.compile(store=learned.memory.access.store)
        # Others are judged beside it: all of them together keep to the limit.
        config = {"max_concurrency": 1} if way.judge.swap else {}
        try:
            result = await self._invoke(io, learned.graphs[name, stage], example.to_json(), config)
        except ModelAnswerError as error:
            return str(error)
        finally:
            self.progress.step()
        return Judgment.model_validate(result["judgment"])

    async def judge_all(
        self,
        io: IO,
        name: str,
        way: Alignment,
        cases: Sequence[tuple[Learned, Example]],
        stage: str = "judge",
    ) -> list[Judgment | str]:
        """Judge many, side by side."""
        self.progress.step(0, len(cases))
        judging = [self.judge(io, name, way, learned, example, stage) for learned, example in cases]
        return await io.gather(judging, self.limit)

    async def _invoke(self, io: IO, graph: Any, given: Any, config: Any) -> Any:
        """Run a graph as if nothing were around it; an answer of no use is asked for anew."""
        with set_config_context({}) as context:
            touched = context.run(note_answers)

            async def awaiting() -> Any:
                return await asyncio.create_task(graph.ainvoke(given, config), context=context)

            try:
                return await io.call(lambda: context.run(graph.invoke, given, config), awaiting)
            except ModelAnswerError:
                await drop_answers(io, self._cache, touched)
                raise


@contextmanager
def opened(criterion: Criterion, options: Options) -> Iterator[Experiment]:
    """Open an experiment's cache and progress for as long as the block lasts."""
    with ExitStack() as stack:
        cache = InMemoryStore() if options.cache is None else options.cache
        if isinstance(cache, str | Path):
            from memalign_graph.local import open_local_store

            cache = stack.enter_context(open_local_store(cache))
        progress = Progress(options.progress)
        stack.callback(progress.close)
        yield Experiment(criterion, options, cache, progress)


def label_of(word: Feedback | Episode) -> ExpertLabel:
    """Return what an expert said."""
    key = word.id if isinstance(word, Episode) else word.episode_id
    return ExpertLabel(author=word.author, value=word.value, comment=word.rationale, episode_id=key)
