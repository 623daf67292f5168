"""Judges measured on cases that they did not learn from: their options, and how they are run.

The graphs are those that are deployed, with all their options; only their models are wrapped, so
that answers are cached and counted, and their memories lie in stores of their own.
"""

import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import Field, PlainValidator

from memalign_graph.alignment.report import AlignmentReport
from memalign_graph.errors import (
    ChatModelError,
    InvalidInputError,
    ModelAnswerError,
    is_about_prompt,
    require_extra,
)
from memalign_graph.evaluation import dataset
from memalign_graph.evaluation.cache import (
    AnswerCache,
    CachedEmbeddings,
    UsageCounter,
    discard_unusable_answers,
)
from memalign_graph.evaluation.results import ALIGNED, BASE
from memalign_graph.evidence.cases import MIN_CASES
from memalign_graph.graphs import create_alignment_graph, create_judge_graph
from memalign_graph.io import IO
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.models import (
    BaseChatModel,
    ChatModelLike,
    embed_texts,
    map_models,
    model_key,
    resolve_chat_model,
)
from memalign_graph.runtime import DEFAULT_MAX_CONCURRENCY
from memalign_graph.settings import Alignment, Guard, Judge, JudgeOptions, LearnFrom, Settings
from memalign_graph.types import Criterion, Example, Feedback, FeedbackLike, Judgment

T = TypeVar("T")
R = TypeVar("R")

_EMBED_TEXTS = 200
_LEARNING = ("learn_from", "guard", "batch_size", "replay_cases", "judge_cases")


def _cache_place(cache: Any) -> Any:
    if not (cache is None or isinstance(cache, BaseStore | str | Path)):
        raise ValueError(f"give a LangGraph store, or the path of a file, not {cache!r}.")
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

    folds: int = Field(default=5, ge=2)  # each case is judged once
    learning_curve: bool = False  # follow the judge as it learns, too; many more judgments
    sizes: Sequence[Annotated[int, Field(ge=1)]] = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
    """How much feedback it has learned at each step of the curve; all of it is the last step."""
    group_by: dataset.GroupBy = "example"
    """What is never both learned from and judged, and is drawn together for intervals: the same
    `example`, the same `inputs`, or what a function of an Example returns."""
    seed: int = Field(default=0, ge=0, lt=2**32)  # shuffles items, and draws them for intervals
    resamples: int = Field(default=1_000, ge=0)  # how often items are drawn for intervals
    cache: CacheLike = None
    """Where models' answers are kept: a LangGraph store, or a file, which needs the extra `local`;
    for this call alone unless told."""
    max_concurrency: int = Field(default=DEFAULT_MAX_CONCURRENCY, ge=1)
    progress: ProgressLike = True  # a bar, or a function of (done, of)


class EvaluationOptions(JudgeOptions, total=False):
    """The fields of `Options`, how is learned, and a judge's options, by name."""

    folds: int
    learning_curve: bool
    sizes: Sequence[int]
    group_by: dataset.GroupBy
    seed: int
    resamples: int
    cache: CacheLike
    max_concurrency: int
    progress: ProgressLike
    learn_from: LearnFrom
    guard: Guard | None
    batch_size: int
    replay_cases: int
    judge_cases: bool


def parse_options(
    criterion: Criterion, options: Mapping[str, Any], judges: Mapping[str, Any] | None = None
) -> tuple[Options, dict[str, Alignment]]:
    """Read how to evaluate, and which judges by name; `base` and `aligned` unless told others."""
    plan = Options(**{name: options[name] for name in options if name in Options.model_fields})
    learning = {name: options[name] for name in _LEARNING if name in options}
    judging = {n: options[n] for n in options if n not in {*Options.model_fields, *_LEARNING}}
    if judges is None:
        way = Alignment(judge=Judge(criterion=criterion, **judging), **learning)
        if not has_memory(way.judge):
            raise InvalidInputError(
                "use_episodes: a judge without guidelines and episodes has no memory to evaluate: "
                'leave it one of them, or give decide="evidence".'
            )
        return plan, {BASE: Alignment(judge=without_memory(way.judge)), ALIGNED: way}
    if judging or not judges:
        raise InvalidInputError(
            f"{next(iter(judging))}: give it to each Judge in `judges`."
            if judging
            else "judges: give at least one, such as {'mine': Judge(...)}."
        )
    ways = {}
    for name, judge in judges.items():
        if not isinstance(judge, Judge | Alignment) or name in dataset.BASELINES:
            raise InvalidInputError(
                f"judges: {name!r} can't be measured: give Judge(...) or Alignment(judge=...), "
                "under another name than a baseline's."
            )
        ways[name] = Alignment(judge=judge, **learning) if isinstance(judge, Judge) else judge
        if ways[name].judge.criterion != criterion:
            raise InvalidInputError(f"judges: {name!r} judges by another criterion: give this one.")
    return plan, ways


def make_splits(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    test: Iterable[FeedbackLike] | None,
    plan: Options,
) -> tuple[list[Feedback], list[dataset.Fold]]:
    """Read feedback and divide it into folds, or into what is told to be judged and the rest."""
    read = dataset.parse_feedback_list(feedback, criterion)
    if test is None:
        return read, dataset.make_folds(read, criterion, plan.folds, plan.group_by, plan.seed)
    cases = dataset.labelled_cases(
        dataset.parse_feedback_list(test, criterion, "test"), criterion, plan.group_by
    )
    if not cases:
        raise InvalidInputError("test: no case has a value: give cases that experts valued.")
    fold = dataset.make_fold(read, cases, plan.group_by)
    if not fold.train:
        raise InvalidInputError(
            "feedback: nothing is left to learn from beside the items in `test`: give more."
        )
    return read, [fold]


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


@contextmanager
def _progress_bar(wanted: ProgressLike) -> Iterator[Callable[..., None]]:
    """Show a bar in the terminal, or tell a function, from any thread."""
    lock, total, done_so_far = threading.Lock(), 0, 0
    with ExitStack() as stack:
        bar: Any = None
        if wanted is True:
            with require_extra("evaluation", "a progress bar"):
                from tqdm import tqdm
            bar = stack.enter_context(tqdm(total=0, unit="step", dynamic_ncols=True, leave=False))

        def step(done: int = 1, of: int = 0) -> None:
            nonlocal total, done_so_far
            with lock:
                done_so_far, total = done_so_far + done, total + of
                if bar is not None:
                    bar.n, bar.total = done_so_far, total
                    bar.refresh()
                if callable(wanted):
                    wanted(done_so_far, total)

        yield step


@dataclass
class TrainedMemory:
    """A memory that an evaluation made, in a store of its own."""

    memory: JudgeMemory
    report: AlignmentReport | None = None


@dataclass(frozen=True)
class Experiment:
    """What all that one evaluation asks of models goes through."""

    criterion: Criterion
    options: Options
    cache: BaseStore
    step: Callable[..., None]
    """Tells that some (`done`) is done, or that there is more (`of`) to do."""
    usage: UsageCounter = field(default_factory=UsageCounter)
    models: dict[str, BaseChatModel] = field(default_factory=dict)

    async def each(self, io: IO, act: Callable[[T], Awaitable[R]], items: Collection[T]) -> list[R]:
        """Do something with each of some items, side by side, and tell how far that is."""

        async def told(item: T) -> R:
            try:
                return await act(item)
            finally:
                self.step()

        self.step(0, len(items))
        return await io.gather([told(item) for item in items], self.options.max_concurrency)


@dataclass(frozen=True)
class JudgeUnderTest:
    """A judge that is measured, at one stage of it."""

    experiment: Experiment
    name: str
    way: Alignment
    stage: str = "learn"

    def at(self, stage: str) -> "JudgeUnderTest":
        """Return the same judge at another stage: `judge`, `curve`, ..."""
        return replace(self, stage=stage)

    @property
    def judge(self) -> Judge:
        """The judge, its models' answers cached and counted."""
        judge = self.way.judge
        return judge.but(
            model=self._model(judge.model),
            distill_model=self._model(judge.distill_model or judge.model),
            embeddings=self._embeddings(),
            keep_judgments=None,
        )

    def _model(self, model: ChatModelLike) -> BaseChatModel:
        known = self.experiment.models
        if isinstance(model, str):
            model = known.setdefault(model, known.get(model) or resolve_chat_model(model))

        def cached(inner: BaseChatModel) -> BaseChatModel:
            cache = AnswerCache(self.experiment.cache, self._count, model_key(inner))
            copied = inner.model_copy(update={"cache": cache})
            # LangChain remembers how it named the model, also after its settings were changed.
            vars(copied).pop("_serialized", None)
            return copied

        return map_models(model, cached)  # type: ignore[no-any-return] # a model like the one given

    def _embeddings(self) -> CachedEmbeddings:
        return CachedEmbeddings(self.experiment.cache, self._count, self.way.judge.embeddings)

    @property
    def _count(self) -> Callable[..., None]:
        return partial(self.experiment.usage.add, self.name, self.stage)

    async def embed(self, io: IO, examples: Iterable[Example]) -> None:
        """Embed examples once, before memories that are made side by side each ask for them."""
        embeddings = self._embeddings()
        texts = list(dict.fromkeys(retrieval_text(example)[0] for example in examples))
        for start in range(0, len(texts), _EMBED_TEXTS):
            await embed_texts(io, embeddings, texts[start : start + _EMBED_TEXTS])

    def empty(self) -> TrainedMemory:
        """Return a memory that has learned nothing."""
        criterion, embeddings = self.experiment.criterion, self._embeddings()
        return TrainedMemory(JudgeMemory(InMemoryStore(), criterion, embeddings=embeddings))

    async def learn(
        self,
        io: IO,
        learned: TrainedMemory,
        feedback: Sequence[Feedback],
        *,
        parallel_runs: int = 1,
    ) -> None:
        """Align a memory with feedback, by the alignment graph."""
        way = dict(self.way)
        judge, _ = self.judge, way.pop("judge")
        # A deployed judge has verdicts on the cases that experts reviewed; they are weighed.
        valued = {item.example.id for item in feedback if item.value is not None}
        can_weigh = judge.decide == "auto" and len(valued) >= MIN_CASES
        way["judge_cases"] |= judge.decide == "evidence" or can_weigh
        builder = create_alignment_graph(self.experiment.criterion, **way, **judge.options)
        graph = builder.compile(store=learned.memory.access.store)
        given = {"feedback": [item.model_dump(mode="json") for item in feedback]}
        limit = max(self.experiment.options.max_concurrency // parallel_runs, 1)
        result = await self._invoke(io, graph, given, {"max_concurrency": limit})
        learned.report = AlignmentReport.model_validate(result["report"])

    async def judge_all(
        self, io: IO, cases: Sequence[tuple[TrainedMemory, Example]]
    ) -> list[Judgment | str]:
        """Judge examples by the judge graph, side by side; where that gives none, tell why."""
        builder = create_judge_graph(self.experiment.criterion, **self.judge.options)
        stores = {id(learned): learned.memory.access.store for learned, _ in cases}
        graphs = {key: builder.compile(store=store) for key, store in stores.items()}
        # All judgments together keep to the limit: one may ask several times.
        limit = self.experiment.options.max_concurrency
        config = {"max_concurrency": max(limit // max(min(len(cases), limit), 1), 1)}

        async def judge(case: tuple[TrainedMemory, Example]) -> Judgment | str:
            learned, example = case
            try:
                result = await self._invoke(io, graphs[id(learned)], example.to_json(), config)
            except (ChatModelError, ModelAnswerError) as error:
                if not is_about_prompt(error):
                    raise
                return str(error)
            return Judgment.model_validate(result["judgment"])

        return await self.experiment.each(io, judge, cases)

    async def _invoke(self, io: IO, graph: Any, given: Any, config: Any) -> Any:
        async with discard_unusable_answers(io, self.experiment.cache):
            return await io.call_either(
                lambda: graph.invoke(given, config), lambda: graph.ainvoke(given, config)
            )


@contextmanager
def open_experiment(criterion: Criterion, options: Options) -> Iterator[Experiment]:
    """Open an experiment's cache and progress, with nothing around it, as long as the block."""
    with ExitStack() as stack:
        cache = InMemoryStore() if options.cache is None else options.cache
        if isinstance(cache, str | Path):
            from memalign_graph.local import open_local_store

            cache = stack.enter_context(open_local_store(cache))
        # Within a graph its callbacks and streams would be told of every call.
        stack.callback(var_child_runnable_config.reset, var_child_runnable_config.set({}))
        step = stack.enter_context(_progress_bar(options.progress))
        yield Experiment(criterion, options, cache, step)
