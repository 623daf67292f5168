"""LangSmith, openevals and agentevals: a judge as an evaluator, people's feedback, few-shot."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NotRequired, Self, TypedDict, cast
from uuid import UUID, uuid4

from langchain_core.runnables import Runnable
from langsmith.run_helpers import get_tracing_context, tracing_context
from pydantic import BaseModel, model_validator

from memalign_graph.agreement import consensus_value, value_or_none, values_agree
from memalign_graph.errors import InvalidInputError
from memalign_graph.integrations.feedback import (
    Fields,
    ImportedFeedback,
    add_feedback,
    add_rejected,
    none_if_empty,
    plain_json,
    scale_of,
)
from memalign_graph.integrations.transcripts import example_fields
from memalign_graph.io import ASYNC, IO, SYNC, run_sync
from memalign_graph.prompts.fences import as_text, escape_tags
from memalign_graph.scales import Boolean, Numeric, Scale, Value
from memalign_graph.settings import Settings
from memalign_graph.types import Criterion, Episode, Example, Judgment

_COMPARED = {"A": (1.0, 0.0), "B": (0.0, 1.0), "tie": (0.5, 0.5)}


class EvaluatorResult(TypedDict):
    """What an evaluator says of one output, in the form that openevals and LangSmith share."""

    key: str
    score: bool | float | None  # None where the verdict is a word
    value: NotRequired[str]  # that word
    comment: str | None
    metadata: dict[str, Any]  # what the verdict rests on: `judgment_id`, `guideline_ids`, ...
    extra: NotRequired[dict[str, Any]]  # {"error": True} where a panel could not judge a criterion


Evaluated = EvaluatorResult | list[EvaluatorResult]


_NO_JUDGMENT = (
    "graph: it returns no judgment: give create_judge_graph(...), create_review_graph(...) or "
    "create_panel_graph(...), compiled with a store."
)


class JudgeEvaluator(Settings):
    """Call a judge's graph on one output, and turn judgments into an evaluator's results."""

    graph: Any
    key: str | None = None
    example: Callable[..., Any] | None = None
    score: Callable[..., Any] | None = None
    context: dict[str, Any] | None = None
    config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not isinstance(self.graph, Runnable):
            kind = type(self.graph).__name__
            raise ValueError(f"graph: {kind} is not compiled: give graph.compile(store=store).")
        # A graph on a server, or another Runnable, does not say beforehand what it returns.
        channels = getattr(self.graph, "output_channels", ["judgment"])
        if "judgment" not in channels and "judgments" not in channels:
            raise ValueError(_NO_JUDGMENT)
        if self.key is not None and (not self.key.strip() or "judgments" in channels):
            raise ValueError("key: give a name, and none for a panel: its criteria have theirs.")
        return self

    async def judge(self, io: IO, inputs: Any, outputs: Any, reference: Any) -> Evaluated:
        """Have the graph judge one output."""
        _check_outputs(outputs)
        fields = {"inputs": inputs, "outputs": outputs}
        if none_if_empty(reference) is not None:
            fields["reference_outputs"] = reference
        if self.example is None:
            example: Any = example_fields(inputs, outputs, fields.get("reference_outputs"))
        else:
            example = self.example(fields)
        given = example.to_json() if isinstance(example, Example) else plain_json(example)
        config = {**(self.config or {})}
        configurable = config.get("configurable") or {}
        if getattr(self.graph, "checkpointer", None) and "thread_id" not in configurable:
            config["configurable"] = {**configurable, "thread_id": uuid4().hex}
        options = {} if self.context is None else {"context": self.context}
        # What LangSmith keeps on this machine stays here with all that the graph runs.
        is_local = get_tracing_context()["enabled"] == "local"
        with tracing_context(enabled=False) if is_local else nullcontext():
            output = await io.call_either(
                lambda: self.graph.invoke(given, config, **options),
                lambda: self.graph.ainvoke(given, config, **options),
            )
        return self._results(output if isinstance(output, Mapping) else {})

    def _results(self, output: Mapping[str, Any]) -> Evaluated:
        if "__interrupt__" in output:
            raise InvalidInputError(
                "graph: it waits for an expert, and an evaluation has none: build it with "
                'review="never", or give context={"review": "never"}.'
            )
        if "judgments" not in output:
            if not isinstance(output.get("judgment"), Mapping):
                raise InvalidInputError(_NO_JUDGMENT)
            return self._result(output["judgment"])
        results = [self._result(judgment) for judgment in output["judgments"].values()]
        for name, why in output.get("errors", {}).items():
            if name not in output["judgments"]:
                failed = EvaluatorResult(key=name, score=None, comment=why, metadata={"error": why})
                results.append({**failed, "extra": {"error": True}})
        if aggregate := dict(output.get("aggregate") or {}):
            score = aggregate.pop("score")
            whole = EvaluatorResult(key="aggregate", score=score, comment=None, metadata=aggregate)
            results.append(whole)
        return results

    def _result(self, given: Mapping[str, Any]) -> EvaluatorResult:
        judgment = Judgment.model_validate(given)
        value = judgment.value
        if self.score is not None:
            score = self.score(judgment)
        elif isinstance(value, bool):
            score = value
        else:
            score = None if isinstance(value, str) else float(value)
        rest = judgment.model_dump(mode="json", exclude={"id", "rationale"})
        result = EvaluatorResult(
            key=self.key or judgment.criterion,
            score=score,
            comment=judgment.rationale,
            metadata={"judgment_id": judgment.id, **rest},
        )
        return {**result, "value": value} if isinstance(value, str) else result


def _check_outputs(outputs: Any) -> None:
    # LangSmith writes {"output": None} for a target that failed or returned nothing.
    if isinstance(outputs, Mapping) and all(value is None for value in outputs.values()):
        raise InvalidInputError(
            "outputs: there are none to judge: the application failed, or returned nothing."
        )


def as_evaluator(graph: Runnable[Any, Any], **options: Any) -> Callable[..., Evaluated]:
    """Make an evaluator of a compiled judge graph, review graph or panel.

    The score is what the judge says: true or false as it is, a number as a float. A choice, or the
    better one of a pair, is the result's `value`, and `score` is None unless a function ranks it. A
    panel has a list of results, one a criterion.

    `key` is what the result is called, the criterion's name unless given. `example` makes the
    example of what the evaluator is given, say of one field of each, `score` the score of a
    `Judgment`. `context` and `config` are those of the graph's runs; with a checkpointer each has a
    thread of its own, unless the config names one.
    """
    evaluator = JudgeEvaluator(graph=graph, **options)

    def memalign_judge(  # the key that LangSmith gives to an error: it reads it from here
        *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **_: Any
    ) -> Evaluated:
        return run_sync(evaluator.judge(SYNC, inputs, outputs, reference_outputs))

    memalign_judge.__name__ = evaluator.key or memalign_judge.__name__
    return memalign_judge


def as_async_evaluator(
    graph: Runnable[Any, Any], **options: Any
) -> Callable[..., Coroutine[Any, Any, Evaluated]]:
    """Make an evaluator that is awaited, for LangSmith's `aevaluate`; see `as_evaluator`."""
    evaluator = JudgeEvaluator(graph=graph, **options)

    async def memalign_judge(
        *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **_: Any
    ) -> Evaluated:
        return await evaluator.judge(ASYNC, inputs, outputs, reference_outputs)

    memalign_judge.__name__ = evaluator.key or memalign_judge.__name__
    return memalign_judge


def as_comparative_evaluator(
    graph: Runnable[Any, Any], **options: Any
) -> Callable[..., dict[str, Any]]:
    """Make an evaluator of two experiments, for LangSmith's `evaluate_comparative`.

    The judge has a `Pairwise` scale. The first run is A, the second B; build it with `swap=True` to
    have it look at them in both orders. See `as_evaluator` for the options.
    """
    evaluator = JudgeEvaluator(graph=graph, **options)

    def memalign_judge(
        *, runs: Sequence[Any], inputs: Any, outputs: Sequence[Any], reference_outputs: Any = None
    ) -> dict[str, Any]:
        if len(runs) != 2 or len(outputs) != 2:  # noqa: PLR2004 - a pair
            raise InvalidInputError(f"runs: a pairwise judge compares two runs, not {len(runs)}.")
        for output in outputs:
            _check_outputs(output)
        ids = [str(run["id"] if isinstance(run, Mapping) else run.id) for run in runs]
        result = run_sync(evaluator.judge(SYNC, inputs, list(outputs), reference_outputs))
        if isinstance(result, list) or result.get("value") not in _COMPARED:
            raise InvalidInputError(
                "graph: comparing needs a judge whose criterion has scale=Pairwise()."
            )
        scores = dict(zip(ids, _COMPARED[result["value"]], strict=True))
        return {"key": result["key"], "scores": scores, "comment": result["comment"]}

    memalign_judge.__name__ = evaluator.key or memalign_judge.__name__
    return memalign_judge


def feedback_from_langsmith(
    runs: Iterable[Any],
    feedback: Iterable[Any] = (),
    *,
    criterion: Criterion,
    key: str | None = None,
    sources: Collection[str] | None = ("app", "api"),
    examples: Iterable[Any] = (),
) -> ImportedFeedback:
    """Read what people said about runs in LangSmith.

    ```python
    runs = list(client.list_runs_from_annotation_queue(queue_id))
    feedback = client.list_feedback(run_ids=[run.id for run in runs])
    imported = feedback_from_langsmith(runs, feedback, criterion=criterion)
    graph.invoke({"feedback": imported.feedback})  # create_alignment_graph
    ```

    A reviewer's score or value becomes the value, the comment the rationale, to which the same
    person's notes on the run are added. A correction goes before the score, also one of a judge's
    score, which makes it the corrector's word: the judge's own comment is then left out. A
    correction that is no value says in the rationale what the output should have been.

    JSON objects do for the client's own, and runs may bring their `feedback`. Its key is the
    criterion's name unless `key` says otherwise; `sources` are those that are people, not judges;
    `examples` are the data set's that runs refer to, for `reference_outputs`.
    """
    scale, key, imported = scale_of(criterion), key or criterion.name, ImportedFeedback()
    runs_by_id: dict[Any, Fields] = {}
    records: list[Fields] = []
    for run_fields in _iter_records(runs, "runs"):
        run_id = run_fields.get("id") or run_fields.get("run_id")
        if run_id is None:
            raise InvalidInputError("runs: a run has no `id`: give runs as LangSmith has them.")
        runs_by_id[run_id] = run_fields
        own = _iter_records(run_fields.get("feedback") or (), "runs.feedback")
        records += [{"run_id": run_id, **record} for record in own]
    records += _iter_records(feedback, "feedback")
    references = {
        known.get("id"): known.get("outputs") for known in _iter_records(examples, "examples")
    }
    # A run that brings its own feedback may have it in the list as well.
    once = {record.get("id") or (at,): record for at, record in enumerate(records)}
    items = [_LangSmithFeedback(record, sources) for record in once.values()]
    counted = [item for item in items if item.skip_reason(key) is None]
    reviewers = {item.reviewer_key for item in counted if item.author is not None}
    notes: defaultdict[Any, list[Any]] = defaultdict(list)
    for item in items:
        if item.get("key") == "note" and item.reviewer_key in reviewers:
            notes[item.reviewer_key].append(item.get("comment"))
        elif reason := item.skip_reason(key):
            imported.passed_over[reason] += 1
    for item in counted:
        run_id = item.get("run_id")
        if run_id not in runs_by_id:
            add_rejected(
                imported, item.get("id"), f"run {run_id} is not among the runs: give it as well."
            )
            continue
        fields = {name: runs_by_id[run_id].get(name) for name in ("inputs", "outputs")}
        known = runs_by_id[run_id].get("reference_example_id")
        value, comments = item.parse(scale)
        add_feedback(
            imported,
            scale,
            partial(example_fields, **fields, reference=references.get(known)),
            value=value,
            rationale="\n".join(
                text.strip() for text in [*comments, *notes[item.reviewer_key]] if text
            ),
            author=item.author,
            id=item.get("id"),
            given_at=item.get("modified_at") or item.get("created_at"),
        )
    return imported


class _LangSmithFeedback:
    """One feedback record on a run."""

    def __init__(self, fields: Fields, sources: Collection[str] | None) -> None:
        source = dict(fields.get("feedback_source") or {})
        self.get = fields.get
        self.source = source.get("type")
        self.from_human = sources is None or self.source in sources
        # Whose judge it is does not say who corrected it.
        name = none_if_empty(source.get("user_name")) or none_if_empty(source.get("user_id"))
        self.author = str(name) if self.from_human and name else None
        self.reviewer_key = (fields.get("run_id"), self.author)

    def skip_reason(self, key: str) -> str | None:
        """Return why it is no person's feedback on the criterion; None if it is."""
        if self.get("key") != key:
            return f"the key is {self.get('key')!r}, not {key!r}"
        if self.get("feedback_group_id") is not None:
            return "it is a preference between runs, not a value of one"
        is_judge = not self.from_human and self.get("correction") is None
        return f"its source is {self.source!r}, which is no person" if is_judge else None

    def parse(self, scale: Scale) -> tuple[Any, list[Any]]:
        """Return the value that the person gave, if any, and the comments."""
        given = self.get("correction")
        correction = dict(given if isinstance(given, Mapping) else {"outputs": given})
        # The one first that the scale's values are kept in.
        names = ("score", "value") if isinstance(scale, Boolean | Numeric) else ("value", "score")
        values = [none_if_empty(correction.pop(name, None)) for name in names]
        comments = [correction.pop(name, None) for name in ("comment", "explanation", "rationale")]
        is_corrected = any(value is not None for value in values)
        if self.from_human:
            comments.append(self.get("comment"))
            values += [self.get(name) for name in names]
        output = {name: value for name, value in correction.items() if value is not None}
        if output and not is_corrected:
            comments.append(f"The output should have been: {as_text(plain_json(output))}")
        return next((value for value in values if value is not None), None), comments


def _iter_records(given: Any, name: str) -> Iterator[Fields]:
    """Read the fields of what LangSmith's client returns, or of JSON objects."""
    is_list = isinstance(given, Iterable) and not isinstance(given, Mapping | BaseModel)
    for item in given if is_list else [None]:
        if not isinstance(item, Mapping | BaseModel):
            raise InvalidInputError(
                f"{name}: give a list of what LangSmith's client returns, or of JSON objects (of a "
                f'table its to_dict("records")), not a value of type {type(given).__name__}.'
            )
        fields = {field: none_if_empty(value) for field, value in dict(item).items()}
        yield {name: str(it) if isinstance(it, UUID) else it for name, it in fields.items()}


class FewShotExample(TypedDict):
    """An example as openevals and agentevals show it: what experts say of it, and why."""

    inputs: str
    outputs: str
    score: Value
    reasoning: NotRequired[str]


def few_shot_examples(episodes: Iterable[Episode], criterion: Criterion) -> list[FewShotExample]:
    """Make few-shot examples of episodes, for `create_llm_as_judge(few_shot_examples=...)`.

    Several experts' episodes on one example become one: with the majority's value, in an order the
    median, and the words of those who agree with it. Left out is an example without a value that is
    on the scale, because a few-shot example shows a score. openevals' judges score true or false,
    from 0 to 1 with `continuous=True`, or one of some numbers with `choices=[...]`.
    """
    scale = scale_of(criterion)
    by_example: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if not isinstance(episode, Episode):
            kind = type(episode).__name__
            raise InvalidInputError(f"episodes: give Episodes, not a value of type {kind}.")
        value = value_or_none(episode.value, scale)
        if value is not None:
            by_example[episode.example_id].append(episode.model_copy(update={"value": value}))
    return [_few_shot(group, scale) for group in by_example.values()]


def _few_shot(episodes: Sequence[Episode], scale: Scale) -> FewShotExample:
    inputs, outputs = _shown(episodes[0].example.inputs), _shown(episodes[0].example.outputs)
    score: Any = consensus_value(episodes, scale)
    made = FewShotExample(inputs=inputs, outputs=outputs, score=score)
    agreeing = [
        one.rationale for one in episodes if values_agree(scale, cast("Value", one.value), score)
    ]
    words = dict.fromkeys(filter(None, agreeing))
    return {**made, "reasoning": _shown("\n".join(words))} if words else made


def _shown(value: Any) -> str:
    """Write a value so that it can't end its example in openevals' prompt."""
    tag = r"(?i)<(?=\s*/?\s*(?:example|input|output|reasoning|score)\b)"
    return re.sub(tag, "&lt;", escape_tags(as_text(value)))
