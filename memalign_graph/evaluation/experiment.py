"""Run judges on cases that they did not learn from: the options, the judge, and its memories.

An evaluation uses the graphs that are deployed, with all their options. Only the models are
wrapped, so that answers are cached and counted, and each memory has a store of its own.
"""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import Field, PlainValidator

from memalign_graph.alignment.report import AlignmentReport
from memalign_graph.errors import InvalidInputError, MemAlignError, is_about_prompt, require_extra
from memalign_graph.evaluation import dataset
from memalign_graph.evaluation.cache import AnswerCache, CachedEmbeddings, UsageCounter
from memalign_graph.evaluation.report import ALIGNED, BASE
from memalign_graph.evidence.cases import MIN_CASES
from memalign_graph.graphs import create_alignment_graph, create_judge_graph
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.index import retrieval_text
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.memory.recall import embed
from memalign_graph.models import (
    BaseChatModel,
    ChatModelLike,
    map_models,
    reply_key,
    resolve_chat_model,
)
from memalign_graph.runtime import DEFAULT_MAX_CONCURRENCY, call_graph
from memalign_graph.settings import Alignment, Judge, LearningOptions, Settings
from memalign_graph.types import Criterion, Episode, Example, Feedback, FeedbackLike, Judgment

T = TypeVar("T")
R = TypeVar("R")

_LEARNING = ("learn_from", "guard", "batch_size", "replay_cases", "judge_cases")


def _valid_cache(cache: Any) -> Any:
    if not (cache is None or isinstance(cache, BaseStore | str | Path)):
        raise ValueError(f"give a LangGraph store, or the path of a file, not {cache!r}.")
    if isinstance(cache, str | Path):
        is_folder = os.path.isdir(cache)  # noqa: PTH112 - `Path.is_dir` raises for long names
        if is_folder or "://" in str(cache):
            raise ValueError("a folder or URL can't be used: give the path of a file.")
    return cache


CacheLike = Annotated[BaseStore | str | Path | None, PlainValidator(_valid_cache)]
ProgressLike = bool | Callable[[int, int], None]


class Options(Settings):
    """Options of an evaluation, for any judge."""

    folds: int = Field(default=5, ge=2)  # number of folds; each case is judged once
    learning_curve: bool = False  # whether to measure the judge as it learns; many more judgments
    sizes: Sequence[Annotated[int, Field(ge=1)]] = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
    """Pieces of feedback that are learned at each step of the curve; the last step has all."""
    group_by: dataset.GroupBy = "example"
    """What makes one item: the same `example`, the same `inputs`, or the same result of a function
    of an Example. An item is never both learned from and judged, and is resampled as a whole."""
    seed: int = Field(default=0, ge=0, lt=2**32)  # of the shuffle into folds and the resamples
    resamples: int = Field(default=1_000, ge=0)  # bootstrap resamples for the intervals
    cache: CacheLike = None
    """Where models' answers are kept: a LangGraph store, or a file (needs the extra `local`). By
    default they are kept for this call only."""
    max_concurrency: int = Field(default=DEFAULT_MAX_CONCURRENCY, ge=1)
    progress: ProgressLike = True  # a bar, or a function of (done, total)


class EvaluationOptions(LearningOptions, total=False):
    """The fields of `Options` and `Judge`, and of alignment how the judge learns, by name."""

    folds: int
    learning_curve: bool
    sizes: Sequence[int]
    group_by: dataset.GroupBy
    seed: int
    resamples: int
    cache: CacheLike
    max_concurrency: int
    progress: ProgressLike


def parse_options(
    criterion: Criterion, options: Mapping[str, Any], judges: Mapping[str, Any] | None = None
) -> tuple[Options, dict[str, Alignment]]:
    """Parse an evaluation's options, and its judges by name; by default `base` and `aligned`."""
    settings = Options(**{name: options[name] for name in options if name in Options.model_fields})
    learning = {name: options[name] for name in _LEARNING if name in options}
    judging = {n: options[n] for n in options if n not in {*Options.model_fields, *_LEARNING}}
    if judges is None:
        aligned = Alignment(judge=Judge(criterion=criterion, **judging), **learning)
        if not aligned.judge.has_memory:
            raise InvalidInputError(
                "use_episodes: a judge without guidelines and episodes has no memory to evaluate. "
                'Switch one of them on, or use decide="evidence".'
            )
        return settings, {BASE: Alignment(judge=without_memory(aligned.judge)), ALIGNED: aligned}
    if judging:
        raise InvalidInputError(f"{next(iter(judging))}: give it to each Judge in `judges`.")
    if not judges or not isinstance(judges, Mapping):
        raise InvalidInputError("judges: give at least one, such as {'mine': Judge(...)}.")
    taken = {*dataset.BASELINES, *map(verdict_name, judges)}
    alignments = {}
    for name, judge in judges.items():
        alignment = Alignment(judge=judge, **learning) if isinstance(judge, Judge) else judge
        fault = None
        if not (isinstance(name, str) and isinstance(alignment, Alignment)) or name in taken:
            fault = (
                "can't be measured: give Judge(...) or Alignment(judge=...), under a text that no "
                "baseline and no other judge's verdict has as its name"
            )
        elif alignment.conflicts == "ask":
            fault = "has conflicts='ask', and an evaluation asks no expert. Use 'newest'"
        elif alignment.judge.criterion != criterion:
            fault = (
                f"has the criterion {alignment.judge.criterion.name!r}, which differs from the "
                f"evaluated one, {criterion.name!r}. Use the same in all"
            )
        if fault:
            raise InvalidInputError(f"judges: {name!r} {fault}.")
        alignments[name] = alignment
    return settings, alignments


def make_splits(
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    test: Iterable[FeedbackLike] | None,
    settings: Options,
) -> tuple[list[Feedback], list[dataset.Fold]]:
    """Parse feedback and split it into folds, or into the test cases and the rest."""
    parsed, group_by = dataset.parse_feedback_list(feedback, criterion), settings.group_by
    if test is None:
        folds = dataset.make_folds(parsed, criterion, settings.folds, group_by, settings.seed)
        return parsed, folds
    test_feedback = dataset.parse_feedback_list(test, criterion, "test")
    cases = dataset.labelled_cases(test_feedback, criterion, group_by)
    if not cases:
        raise InvalidInputError("test: no case has a value: give cases that experts valued.")
    fold = dataset.make_fold(parsed, cases, group_by)
    if not fold.train:
        raise InvalidInputError(
            "feedback: nothing is left to learn from outside the items in `test`: give more."
        )
    return parsed, [fold]


def verdict_name(name: object) -> str:
    """Name the row of a judge's own verdicts, where the evidence decides."""
    return f"{name} verdict"


def without_memory(judge: Judge) -> Judge:
    return judge.but(use_guidelines=False, use_episodes=False, decide="verdict")


def ablations(judge: Judge) -> dict[str, Judge | Alignment]:
    """Return variants of a judge that each lack a part of it, as `judges` for `evaluate`.

    Args:
        judge: The judge with all its parts.

    Returns:
        The variants by name, the judge itself last.
    """
    return {
        BASE: without_memory(judge),
        "semantic only": judge.but(use_guidelines=True, use_episodes=False),
        "episodic only": judge.but(use_guidelines=False, use_episodes=True),
        "labels only": Alignment(judge=judge, learn_from="labels"),
        "words only": Alignment(judge=judge, learn_from="words"),
        ALIGNED: judge,
    }


@dataclass
class TrainedMemory:
    """A memory that an evaluation made, in a store of its own."""

    access: MemoryAccess
    report: AlignmentReport | None = None


@dataclass(frozen=True)
class Experiment:
    """What the judges of one evaluation share."""

    criterion: Criterion
    options: Options
    cache: BaseStore
    bar: Any = None  # of tqdm
    steps: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    usage: UsageCounter = field(default_factory=UsageCounter)
    models: dict[str, BaseChatModel] = field(default_factory=dict)

    def advance(self, done: int = 1, more: int = 0) -> None:
        """Report that a step is done, or that there are more to do; from any thread."""
        with self.lock:
            self.steps.update(done=done, all=more)
            if self.bar is not None:
                self.bar.n, self.bar.total = self.steps["done"], self.steps["all"]
                self.bar.refresh()
            if callable(self.options.progress):
                self.options.progress(self.steps["done"], self.steps["all"])

    async def map(self, io: IO, act: Callable[[T], Awaitable[R]], items: Collection[T]) -> list[R]:
        """Apply a function to each item, concurrently and with progress."""

        async def act_and_advance(item: T) -> R:
            try:
                return await act(item)
            finally:
                self.advance()

        self.advance(0, len(items))
        limit = self.options.max_concurrency
        return await io.gather([act_and_advance(item) for item in items], limit)

    async def try_case(self, judging: Awaitable[T]) -> T | str:
        """Judge one case; returns the reason if the model gives no usable answer to it."""
        try:
            return await judging
        except MemAlignError as error:
            if not is_about_prompt(error):
                raise
            return str(error)


@dataclass(frozen=True)
class JudgeUnderTest:
    """A judge that is measured, at one stage of its evaluation."""

    experiment: Experiment
    name: str
    alignment: Alignment
    stage: str = "learn"

    def for_stage(self, stage: str) -> "JudgeUnderTest":
        """Return the same judge at another stage: `judge`, `curve`, ..."""
        return replace(self, stage=stage)

    @property
    def judge(self) -> Judge:
        """The judge, with models whose answers are cached and counted."""
        judge = self.alignment.judge
        return judge.but(
            model=self._model(judge.model),
            distill_model=self._model(judge.distill_model or judge.model),
            embeddings=self._embeddings(),
            keep_judgments=None,
            require_namespace=False,  # each memory has a store of its own
        )

    def _model(self, model: ChatModelLike) -> BaseChatModel:
        by_name = self.experiment.models
        if isinstance(model, str):
            model = by_name.setdefault(model, by_name.get(model) or resolve_chat_model(model))

        def cached(inner: BaseChatModel) -> BaseChatModel:
            cache = AnswerCache(self.experiment.cache, self._count, reply_key(inner))
            copied = inner.model_copy(update={"cache": cache})
            # LangChain remembers how it named the model, also after its settings were changed.
            vars(copied).pop("_serialized", None)
            return copied

        return map_models(model, cached)  # type: ignore[no-any-return] # a model like the one given

    def _embeddings(self) -> CachedEmbeddings:
        judge = self.alignment.judge
        return CachedEmbeddings(self.experiment.cache, self._count, judge.embeddings)

    @property
    def _count(self) -> Callable[..., None]:
        return partial(self.experiment.usage.add, self.name, self.stage)

    async def embed(self, io: IO, examples: Iterable[Example]) -> None:
        """Embed examples once, before memories that learn concurrently each ask for them."""
        texts = {text: text for text, _ in map(retrieval_text, examples)}
        await embed(io, self.empty().access, texts, {})

    def empty(self) -> TrainedMemory:
        """Return a memory that has learned nothing."""
        criterion, embeddings = self.experiment.criterion, self._embeddings()
        return TrainedMemory(JudgeMemory(InMemoryStore(), criterion, embeddings=embeddings).access)

    async def learn(
        self, io: IO, memory: TrainedMemory, feedback: Sequence[Feedback], parallel_runs: int = 1
    ) -> None:
        """Align a memory with feedback, by the alignment graph."""
        options = dict(self.alignment)
        judge, _ = self.judge, options.pop("judge")
        # The evidence needs verdicts on the cases that are learned from. A deployed judge has them:
        # it judged these cases before experts reviewed them.
        learned: list[Feedback | Episode] = [*feedback, *await memory.access.all_episodes(io)]
        labelled = {item.example.id for item in learned if item.value is not None}
        can_weigh = judge.decide == "auto" and len(labelled) >= MIN_CASES
        options["judge_cases"] |= judge.decide == "evidence" or can_weigh
        builder = create_alignment_graph(self.experiment.criterion, **options, **judge.options)
        graph = builder.compile(store=memory.access.store)
        graph_input = {"feedback": [item.model_dump(mode="json") for item in feedback]}
        limit = max(self.experiment.options.max_concurrency // parallel_runs, 1)
        result = await call_graph(io, graph, graph_input, config={"max_concurrency": limit})
        memory.report = AlignmentReport.model_validate(result["report"])

    async def judge_all(
        self, io: IO, cases: Sequence[tuple[TrainedMemory, Example]]
    ) -> list[Judgment | str]:
        """Judge examples by the judge graph; a case without a judgment gets the reason instead."""
        builder = create_judge_graph(self.experiment.criterion, **self.judge.options)
        stores = {id(memory): memory.access.store for memory, _ in cases}
        graphs = {key: builder.compile(store=store) for key, store in stores.items()}
        # The limit holds for all judgments together, and one judgment may ask several times.
        limit = self.experiment.options.max_concurrency
        per_case = max(limit // max(min(len(cases), limit), 1), 1)

        async def judge(case: tuple[TrainedMemory, Example]) -> Judgment | str:
            memory, example = case
            config: RunnableConfig = {"max_concurrency": per_case}
            running = call_graph(io, graphs[id(memory)], example.to_json(), config=config)
            result = await self.experiment.try_case(running)
            return result if isinstance(result, str) else Judgment(**result["judgment"])

        return await self.experiment.map(io, judge, cases)


@contextmanager
def open_experiment(criterion: Criterion, options: Options) -> Iterator[Experiment]:
    with ExitStack() as stack:
        cache = InMemoryStore() if options.cache is None else options.cache
        if isinstance(cache, str | Path):
            from memalign_graph.local import open_local_store

            try:
                cache = stack.enter_context(open_local_store(cache))
            except (OSError, ValueError, sqlite3.Error) as error:
                raise InvalidInputError(f"cache: {cache} can't be used: {error}.") from error
        # Inside a graph, its callbacks and streams would otherwise get every call of the models.
        stack.callback(var_child_runnable_config.reset, var_child_runnable_config.set({}))
        bar = None
        if options.progress is True:
            with require_extra("evaluation", "a progress bar"):
                from tqdm import tqdm
            bar = stack.enter_context(tqdm(total=0, unit="step", dynamic_ncols=True, leave=False))
        yield Experiment(criterion, options, cache, bar)
