"""A judge as an evaluator: for LangSmith's `evaluate`, and wherever openevals' evaluators go."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import StateGraph
from langsmith.run_helpers import get_tracing_context, tracing_context

from memalign_graph.errors import InvalidInputError
from memalign_graph.integrations.evaluator_results import (
    EvaluatorResult,
    Scoring,
    judgment_result,
    panel_results,
)
from memalign_graph.integrations.imported import make_example
from memalign_graph.integrations.plain import given_or_none
from memalign_graph.types import Judgment

MakeExample = Callable[[dict[str, Any]], Any]
"""Makes the example of what an evaluator is given: `inputs`, `outputs`, `reference_outputs`."""

_DEFAULT_NAME = "memalign_judge"
_CHANNELS = ("judgment", "judgments")


class Evaluator(Protocol):
    """An evaluator as openevals and LangSmith call it."""

    def __call__(
        self, *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **kwargs: Any
    ) -> EvaluatorResult | list[EvaluatorResult]:
        """Judge one output."""
        ...


class AsyncEvaluator(Protocol):
    """The same, to be awaited."""

    async def __call__(
        self, *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **kwargs: Any
    ) -> EvaluatorResult | list[EvaluatorResult]:
        """Judge one output; see `Evaluator`."""
        ...


def as_evaluator(
    graph: Runnable[Any, Any],
    *,
    key: str | None = None,
    example: MakeExample | None = None,
    score: Scoring | None = None,
    context: Mapping[str, Any] | None = None,
    config: RunnableConfig | None = None,
) -> Evaluator:
    """Make an evaluator of a compiled judge graph, review graph or panel.

    ```python
    judge = create_judge_graph(criterion, model=model, embeddings=embeddings)
    evaluator = as_evaluator(judge.compile(store=store))
    langsmith.evaluate(target, data=dataset, evaluators=[evaluator])
    ```

    The score is what the judge says: true or false as it is, a number as a float. A choice, or the
    better one of a pair, is the result's `value`, and `score` is None unless you give a function
    that ranks it. Messages and models among inputs and outputs are judged as JSON.

    Args:
        graph: The compiled graph, with its store.
        key: What the result is called; the criterion's name unless given. A panel's results are
            called as its criteria are.
        example: Makes the example of what the evaluator is given, say of one field of each:
            `lambda given: {**given, "outputs": given["outputs"]["answer"]}`.
        score: Makes the score of a `Judgment`, say of an ordered choice:
            `lambda judgment: CHOICES.index(judgment.value) / (len(CHOICES) - 1)`.
        context: The graph's context: `namespace`, `k` and so on.
        config: The config of each run. A graph with a checkpointer gets a new thread for each run,
            unless the config names one.

    Returns:
        The evaluator.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    evaluation = Evaluation.of(
        graph, key=key, example=example, score=score, context=context, config=config
    )

    def memalign_judge(  # the key that LangSmith gives to an error: it reads it from here
        *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **kwargs: Any
    ) -> EvaluatorResult | list[EvaluatorResult]:
        given = evaluation.given(inputs, outputs, reference_outputs)
        with untraced_if_local():
            output = graph.invoke(given, evaluation.run_config(), **evaluation.options)
        return evaluation.results(output, kwargs)

    memalign_judge.__name__ = evaluation.name
    return memalign_judge


def as_async_evaluator(
    graph: Runnable[Any, Any],
    *,
    key: str | None = None,
    example: MakeExample | None = None,
    score: Scoring | None = None,
    context: Mapping[str, Any] | None = None,
    config: RunnableConfig | None = None,
) -> AsyncEvaluator:
    """Make an evaluator that is awaited, for LangSmith's `aevaluate`; see `as_evaluator`.

    Args:
        graph: The compiled graph, with its store.
        key: What the result is called.
        example: Makes the example of what the evaluator is given.
        score: Makes the score of a `Judgment`.
        context: The graph's context.
        config: The config of each run.

    Returns:
        The evaluator.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    evaluation = Evaluation.of(
        graph, key=key, example=example, score=score, context=context, config=config
    )

    async def memalign_judge(
        *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **kwargs: Any
    ) -> EvaluatorResult | list[EvaluatorResult]:
        given = evaluation.given(inputs, outputs, reference_outputs)
        with untraced_if_local():
            output = await graph.ainvoke(given, evaluation.run_config(), **evaluation.options)
        return evaluation.results(output, kwargs)

    memalign_judge.__name__ = evaluation.name
    return memalign_judge


@contextmanager
def untraced_if_local() -> Iterator[None]:
    """Keep the graph's runs on this machine where LangSmith keeps the evaluator's own."""
    if get_tracing_context()["enabled"] == "local":
        with tracing_context(enabled=False):
            yield
    else:
        yield


@dataclass(frozen=True)
class Evaluation:
    """What goes into a run of the graph, and what comes out of it."""

    graph: Runnable[Any, Any]
    key: str | None
    example: MakeExample | None
    score: Scoring | None
    context: Mapping[str, Any] | None
    config: RunnableConfig | None

    @classmethod
    def of(
        cls,
        graph: Any,
        *,
        key: Any,
        context: Any,
        config: Any,
        example: Any = None,
        score: Any = None,
    ) -> "Evaluation":
        """Check the options.

        Args:
            graph: The compiled graph.
            key: What the result is called.
            context: The graph's context.
            config: The config of each run.
            example: Makes the example.
            score: Makes the score.

        Returns:
            The evaluation.

        Raises:
            InvalidInputError: If one of them can't be used.
        """
        _check_graph(graph, key)
        if key is not None and (not isinstance(key, str) or not key.strip()):
            raise InvalidInputError(f"key: {key!r} is no name: give text, or leave it out.")
        for name, function in (("example", example), ("score", score)):
            if function is not None and not callable(function):
                raise InvalidInputError(
                    f"{name}: give a function, not a value of type {type(function).__name__}."
                )
        for name, given in (("context", context), ("config", config)):
            if given is not None and not isinstance(given, Mapping):
                raise InvalidInputError(
                    f"{name}: give a dict, not a value of type {type(given).__name__}."
                )
        return cls(graph, key, example, score, context, config)

    @property
    def name(self) -> str:
        """What LangSmith calls the evaluator's own runs."""
        return self.key or _DEFAULT_NAME

    @property
    def options(self) -> dict[str, Any]:
        """What the graph is called with besides input and config."""
        return {} if self.context is None else {"context": dict(self.context)}

    def given(self, inputs: Any, outputs: Any, reference_outputs: Any) -> dict[str, Any]:
        """Make the graph's input of what the evaluator is given.

        Args:
            inputs: What the application was given.
            outputs: What it answered.
            reference_outputs: What it should have answered; LangSmith gives an empty dict where
                the data set has none.

        Returns:
            The input.

        Raises:
            InvalidInputError: If there are no outputs, or `example` returned no example.
        """
        # LangSmith writes {"output": None} for a target that failed or returned nothing.
        if isinstance(outputs, Mapping) and all(one is None for one in outputs.values()):
            raise InvalidInputError(
                "outputs: there are none to judge: the application failed, or returned nothing."
            )
        fields = {"inputs": inputs, "outputs": outputs}
        reference = given_or_none(reference_outputs)
        if reference is not None:
            fields["reference_outputs"] = reference
        return make_example(fields, self.example, fields)

    def run_config(self) -> RunnableConfig:
        """Return the config of one run, on a thread of its own where threads are kept."""
        config: RunnableConfig = {**self.config} if self.config else {}
        configurable = config.get("configurable") or {}
        if getattr(self.graph, "checkpointer", None) and "thread_id" not in configurable:
            config["configurable"] = {**configurable, "thread_id": uuid4().hex}
        return config

    def results(
        self, output: Any, unused: Mapping[str, Any]
    ) -> EvaluatorResult | list[EvaluatorResult]:
        """Write what the graph returned as results.

        Args:
            output: What the graph returned.
            unused: What the evaluator was given and does not use.

        Returns:
            The result; of a panel a list.

        Raises:
            InvalidInputError: If the graph waits for an expert, or returned no judgment.
        """
        if not isinstance(output, Mapping):
            raise InvalidInputError(_NO_JUDGMENT)
        if "__interrupt__" in output:
            raise InvalidInputError(
                "graph: it waits for an expert, and an evaluation has none: build it with "
                'review="never", or give context={"review": "never"}.'
            )
        if "judgments" in output:
            results = panel_results(output, self.score)
        elif isinstance(output.get("judgment"), Mapping):
            judgment = Judgment.model_validate(output["judgment"])
            results = [judgment_result(judgment, self.key, self.score)]
        else:
            raise InvalidInputError(_NO_JUDGMENT)
        if unused:
            for one in results:
                one["metadata"]["unused"] = sorted(unused)
        return results if "judgments" in output else results[0]


_NO_JUDGMENT = (
    "graph: it returns no judgment: give create_judge_graph(...), create_review_graph(...) or "
    "create_panel_graph(...), compiled with a store."
)


def _check_graph(graph: Any, key: str | None) -> None:
    if isinstance(graph, StateGraph):
        raise InvalidInputError("graph: it is not compiled yet: give graph.compile(store=store).")
    if not isinstance(graph, Runnable):
        raise InvalidInputError(
            "graph: give a compiled graph, such as create_judge_graph(...).compile(store=store), "
            f"not a value of type {type(graph).__name__}."
        )
    # A graph on a server, or another Runnable, does not say beforehand what it returns.
    channels = getattr(graph, "output_channels", None)
    if not isinstance(channels, list | tuple):
        return
    if not any(name in channels for name in _CHANNELS):
        raise InvalidInputError(_NO_JUDGMENT)
    if "judgments" in channels and key is not None:
        raise InvalidInputError(
            "key: a panel's results are called as its criteria are: leave `key` out."
        )
