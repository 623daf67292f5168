"""LangSmith, openevals, agentevals: judges as evaluators, people's feedback, few-shot examples."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NotRequired, Self, TypedDict, cast
from uuid import uuid4

from langchain_core.runnables import Runnable
from langsmith.run_helpers import get_tracing_context, tracing_context
from pydantic import BaseModel, model_validator

from memalign_graph.agreement import consensus_value, value_or_none, values_agree
from memalign_graph.errors import InvalidInputError
from memalign_graph.integrations.recorded import (
    Fields,
    ImportedFeedback,
    add_feedback,
    example_fields,
    none_if_empty,
    plain_json,
    rejecting,
    scale_of,
)
from memalign_graph.io import ASYNC, IO, SYNC, run_sync
from memalign_graph.prompts.fences import as_text, escape_tags
from memalign_graph.runtime import call_graph
from memalign_graph.scales import Boolean, Numeric, Scale, Value
from memalign_graph.settings import Settings
from memalign_graph.types import Criterion, Episode, Example, Judgment

_IDS = ("id", "run_id", "reference_example_id")  # UUIDs of the client, text in JSON
_PAIR_SCORES = {"A": (1.0, 0.0), "B": (0.0, 1.0), "tie": (0.5, 0.5)}


class EvaluatorResult(TypedDict):
    """An evaluator's result for one output, in the form that openevals and LangSmith share."""

    key: str
    score: bool | float | None  # None if the value is a choice
    value: NotRequired[str]  # the choice
    comment: str | None
    metadata: dict[str, Any]  # of the judgment: `judgment_id`, `guideline_ids`, ...
    extra: NotRequired[dict[str, Any]]  # {"error": True} if a panel could not judge a criterion


Evaluated = EvaluatorResult | list[EvaluatorResult]

_NO_JUDGMENT = "graph: it returns no judgment. Give a compiled judge, review or panel graph."


class JudgeEvaluator(Settings):
    """A judge's graph with an evaluator's options."""

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
            raise ValueError(f"graph: {kind} is not compiled. Use graph.compile(store=store).")
        # A graph on a server, or another Runnable, does not declare what it returns.
        channels = getattr(self.graph, "output_channels", ["judgment"])
        if "judgment" not in channels and "judgments" not in channels:
            raise ValueError(_NO_JUDGMENT)
        if self.key is not None and (not self.key.strip() or "judgments" in channels):
            raise ValueError("key: give a name, and none for a panel: its criteria have theirs.")
        return self

    @property
    def name(self) -> str:
        return self.key or "memalign_judge"

    async def judge(self, io: IO, inputs: Any, outputs: Any, reference: Any) -> Evaluated:
        _check_outputs(outputs)
        reference = none_if_empty(reference)
        fields = {"inputs": inputs, "outputs": outputs, "reference_outputs": reference}
        example = self.example(fields) if self.example else example_fields(**fields)
        graph_input = example.to_json() if isinstance(example, Example) else plain_json(example)
        config = {**(self.config or {})}
        configurable = config.get("configurable") or {}
        if getattr(self.graph, "checkpointer", None) and "thread_id" not in configurable:
            config["configurable"] = {**configurable, "thread_id": uuid4().hex}
        options = {} if self.context is None else {"context": self.context}
        # With `upload_results=False` nothing of the judge's runs is uploaded, either.
        is_local = get_tracing_context()["enabled"] == "local"
        with tracing_context(enabled=False) if is_local else nullcontext():
            output: Any = await call_graph(io, self.graph, graph_input, config=config, **options)
        return self._results(output if isinstance(output, Mapping) else {})

    def _results(self, output: Mapping[str, Any]) -> Evaluated:
        if "__interrupt__" in output:
            raise InvalidInputError(
                "graph: it waits for an expert, and an evaluation has none. Build it with "
                'review="never", or use context={"review": "never"}.'
            )
        if "judgments" not in output:
            if not isinstance(output.get("judgment"), Mapping):
                raise InvalidInputError(_NO_JUDGMENT)
            return self._result(output["judgment"])
        results = [self._result(judgment) for judgment in output["judgments"].values()]
        results += [
            EvaluatorResult(key=name, score=None, comment=why, metadata={}, extra={"error": True})
            for name, why in output.get("errors", {}).items()
            if name not in output["judgments"]
        ]
        if aggregate := dict(output.get("aggregate") or {}):
            score = aggregate.pop("score")
            results.append(
                EvaluatorResult(key="aggregate", score=score, comment=None, metadata=aggregate)
            )
        return results

    def _result(self, fields: Mapping[str, Any]) -> EvaluatorResult:
        judgment = Judgment.model_validate(fields)
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
    # LangSmith gives {"output": None} for a target that failed or returned nothing.
    if isinstance(outputs, Mapping) and all(value is None for value in outputs.values()):
        raise InvalidInputError("outputs: there are none to judge. Did the application fail?")


def as_evaluator(graph: Runnable[Any, Any], **options: Any) -> Callable[..., Evaluated]:
    """Make an evaluator from a compiled judge graph, review graph or panel.

    The score is the judgment's value: true, false or a number. A choice, or the better one of a
    pair, is the result's `value`, with `score` None. A panel gives a list of results, one for each
    criterion.

    Args:
        graph: The graph, compiled with a store. It must not ask an expert.
        **options: `key` names the result (by default the criterion's name). `example` is a function
            that makes the example from the evaluator's arguments, `score` one that makes the score
            from a `Judgment`. `context` and `config` are those of the graph's runs. With a
            checkpointer each run has a thread of its own, unless `config` names one.

    Returns:
        A function of `inputs`, `outputs` and `reference_outputs`.

    Raises:
        InvalidInputError: If the graph or an option cannot be used.
    """
    evaluator = JudgeEvaluator(graph=graph, **options)

    def memalign_judge(  # LangSmith reads the key of an error from the function's code
        *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **_: Any
    ) -> Evaluated:
        return run_sync(evaluator.judge(SYNC, inputs, outputs, reference_outputs))

    memalign_judge.__name__ = evaluator.name
    return memalign_judge


def as_async_evaluator(
    graph: Runnable[Any, Any], **options: Any
) -> Callable[..., Coroutine[Any, Any, Evaluated]]:
    """Make an async evaluator, for LangSmith's `aevaluate`; see `as_evaluator`."""
    evaluator = JudgeEvaluator(graph=graph, **options)

    async def memalign_judge(
        *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **_: Any
    ) -> Evaluated:
        return await evaluator.judge(ASYNC, inputs, outputs, reference_outputs)

    memalign_judge.__name__ = evaluator.name
    return memalign_judge


def as_comparative_evaluator(
    graph: Runnable[Any, Any], **options: Any
) -> Callable[..., dict[str, Any]]:
    """Make an evaluator of two experiments, for LangSmith's `evaluate_comparative`.

    The first run is A, the second B. A judge built with `swap=True` judges them in both orders.

    Args:
        graph: A graph whose criterion has a `Pairwise` scale.
        **options: As of `as_evaluator`.

    Returns:
        A function of `runs`, `inputs`, `outputs` and `reference_outputs`.

    Raises:
        InvalidInputError: If the graph or an option cannot be used.
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
        if isinstance(result, list) or result.get("value") not in _PAIR_SCORES:
            raise InvalidInputError("graph: a comparison needs a criterion with scale=Pairwise().")
        scores = dict(zip(ids, _PAIR_SCORES[result["value"]], strict=True))
        return {"key": result["key"], "scores": scores, "comment": result["comment"]}

    memalign_judge.__name__ = evaluator.name
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
    """Import people's feedback on runs in LangSmith.

    ```python
    selects = ["ID", "INPUTS", "OUTPUTS", "REFERENCE_EXAMPLE_ID"]
    runs = list(
        client.runs.query(project_ids=[project_id], min_start_time=since, selects=selects)
    )
    feedback = client.list_feedback(run_ids=[run.id for run in runs])
    imported = feedback_from_langsmith(runs, feedback, criterion=criterion)
    graph.invoke({"feedback": imported.feedback})  # create_alignment_graph
    ```

    The author is the reviewer's name, or else the user's id. A reviewer's score or value becomes
    the value. The comment becomes the rationale, with the reviewer's notes on the run. A correction
    counts before the score, also one of a judge's score: it is the corrector's feedback, without
    the judge's comment. A correction that is not a value becomes a rationale that says what the
    output should have been. A score with the source type `api` that an evaluator's run gave has the
    source `evaluator`.

    Args:
        runs: Runs of LangSmith's client, or their JSON, which may have their `feedback`.
        feedback: Feedback of LangSmith's client, or its JSON.
        criterion: The criterion that the feedback is on.
        key: The feedback's key, if it is not the criterion's name.
        sources: The types of sources that are people; None for all.
        examples: Examples of the data set, for `reference_outputs`.

    Returns:
        The feedback, what cannot be used with the reason, and counts of the other records.

    Raises:
        InvalidInputError: If an argument has another form.
    """
    scale, key, imported = scale_of(criterion), key or criterion.name, ImportedFeedback()
    runs_by_id: dict[Any, Fields] = {}
    records: list[Fields] = []
    for run in _iter_records(runs, "runs"):
        run_id = run.get("id") or run.get("run_id")
        if run_id is None:
            raise InvalidInputError("runs: a run has no `id`: give runs as LangSmith has them.")
        runs_by_id[run_id] = run
        own = _iter_records(run.get("feedback") or (), "runs.feedback")
        records += [{**record, "run_id": record.get("run_id") or run_id} for record in own]
    records += _iter_records(feedback, "feedback")
    known = _iter_records(examples, "examples")
    references = {example.get("id"): example.get("outputs") for example in known}
    # The feedback that a run brings may be in the list, too.
    unique = {record.get("id") or (number,): record for number, record in enumerate(records)}
    items = [_LangSmithFeedback(record, sources) for record in unique.values()]
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
        with rejecting(imported, item.get("id")):
            run = runs_by_id.get(run_id, {})
            if run.get("inputs") is None and run.get("outputs") is None:
                raise InvalidInputError(f"runs: give run {run_id}, with inputs and outputs.")
            reference = references.get(run.get("reference_example_id"))
            value, comments = item.parse(scale)
            comments += notes[item.reviewer_key]
            filled = [comment for comment in comments if none_if_empty(comment) is not None]
            texts = [as_text(plain_json(comment)).strip() for comment in filled]
            add_feedback(
                imported,
                scale,
                value=value,
                example=example_fields(run.get("inputs"), run.get("outputs"), reference),
                rationale="\n".join(texts),
                author=item.author,
                id=item.get("id"),
                given_at=item.get("modified_at") or item.get("created_at"),
            )
    return imported


class _LangSmithFeedback:
    """One feedback record on a run."""

    def __init__(self, fields: Fields, sources: Collection[str] | None) -> None:
        source = fields.get("feedback_source") or {}
        source = dict(source) if isinstance(source, Mapping | BaseModel) else {"type": source}
        self.get = fields.get
        metadata, self.source = source.get("metadata"), source.get("type")
        if self.source == "api" and isinstance(metadata, Mapping) and "__run" in metadata:
            self.source = "evaluator"  # an evaluator's run, as in tests with LangSmith's plugin
        self.from_human = sources is None or str(self.source) in sources
        # Of a corrected judge's score, the source names the judge's user, not the corrector.
        name = none_if_empty(source.get("user_name")) or none_if_empty(source.get("user_id"))
        self.author = str(name) if self.from_human and name else None

    @property
    def reviewer_key(self) -> tuple[Any, str | None]:
        return self.get("run_id"), self.author

    def skip_reason(self, key: str) -> str | None:
        """Return why it is no person's feedback on the criterion; None if it is."""
        if self.get("key") != key:
            return f"the key is {self.get('key')!r}, not {key!r}"
        if self.get("feedback_group_id") is not None:
            return "it is a preference between runs, not a value of one"
        if self.get("run_id") is None:
            return "it is on no run"
        is_judge = not self.from_human and self.get("correction") is None
        return f"its source is {self.source!r}, which is not a person" if is_judge else None

    def parse(self, scale: Scale) -> tuple[Any, list[Any]]:
        """Return the value that the person gave, if any, and the comments."""
        raw = self.get("correction")
        correction = dict(raw if isinstance(raw, Mapping) else {"outputs": raw})
        # First the field that holds this scale's values.
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


def _iter_records(records: Any, name: str) -> Iterator[Fields]:
    """Yield the fields of what LangSmith's client returns, or of JSON objects."""
    is_list = isinstance(records, Iterable) and not isinstance(records, Mapping)
    for record in records if is_list else [None]:
        if not isinstance(record, Mapping | BaseModel):
            raise InvalidInputError(
                f"{name}: give a list of what LangSmith's client returns, or of JSON objects (of a "
                f'table its to_dict("records")), not a value of type {type(records).__name__}.'
            )
        fields = {field: none_if_empty(value) for field, value in dict(record).items()}
        ids = {field: str(fields[field]) for field in _IDS if fields.get(field) is not None}
        yield {**fields, **ids}


class FewShotExample(TypedDict):
    """An example with an expert's score and reason, as openevals and agentevals take it."""

    inputs: str
    outputs: str
    score: Value
    reasoning: NotRequired[str]


def few_shot_examples(episodes: Iterable[Episode], criterion: Criterion) -> list[FewShotExample]:
    """Make few-shot examples from episodes, for `create_llm_as_judge(few_shot_examples=...)`.

    Several experts' episodes on one example become one, with the consensus value (the majority, or
    the median of an ordered scale) and the comments of those who gave it. An example without a
    value on the scale is left out. openevals' judges score true or false, from 0 to 1 with
    `continuous=True`, or one of some numbers with `choices=[...]`.

    Args:
        episodes: The episodes, such as `memory.episodes()`.
        criterion: Their criterion.

    Returns:
        The examples, with text that cannot end its place in openevals' prompt.

    Raises:
        InvalidInputError: If an argument is something else.
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
    example = episodes[0].example
    score = cast("Value", consensus_value(episodes, scale))
    comments = dict.fromkeys(
        episode.rationale
        for episode in episodes
        if episode.rationale and values_agree(scale, cast("Value", episode.value), score)
    )
    inputs, outputs = _escaped(example.inputs), _escaped(example.outputs)
    few_shot = FewShotExample(inputs=inputs, outputs=outputs, score=score)
    return {**few_shot, "reasoning": _escaped("\n".join(comments))} if comments else few_shot


def _escaped(value: Any) -> str:
    """Return a value as text that can't end its example in openevals' prompt."""
    tag = r"(?i)<(?=\s*/?\s*(?:example|input|output|reasoning|score)\b)"
    return re.sub(tag, "&lt;", escape_tags(as_text(value)))
