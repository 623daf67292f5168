"""What a judge of MLflow's MemAlign has learned, as a memory."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from memalign_graph.errors import InvalidInputError, needs_extra
from memalign_graph.identity import digest
from memalign_graph.integrations.imported import ImportedFeedback, RejectedFeedback
from memalign_graph.integrations.mlflow_traces import feedback_from_mlflow, read_traces, trace_id_of
from memalign_graph.memory.operations import check_guideline_text
from memalign_graph.memory.portable import FORMAT
from memalign_graph.types import Criterion, Episode, Feedback, Guideline

_MEMORY = "memory_augmented_judge_data"


class ImportedMemory(BaseModel):
    """What was found in a judge of MLflow's MemAlign."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lines: list[str]
    """The memory as lines of JSON, for `JudgeMemory.import_jsonl`."""

    episodes: list[Episode]
    """What people said, as distilled: the guidelines are what MLflow made of it."""

    guidelines: list[Guideline]
    """The guidelines, each with the episodes that it came from; those without sources count as
    written by hand."""

    rejected: list[RejectedFeedback]
    """Feedback and guidelines that can't be used, each with the reason."""

    passed_over: dict[str, int]
    """Assessments that are no person's word on the criterion: why, and how many."""

    missing_trace_ids: list[str]
    """Traces that the judge names and that are not there any more."""


def memory_from_mlflow(
    judge: Any, criterion: Criterion, *, traces: Iterable[Any] | None = None
) -> ImportedMemory:
    """Read what a judge of MLflow's MemAlign has learned.

    ```python
    judge = mlflow.genai.scorers.get_scorer(name="support_tone")
    memory.import_jsonl(memory_from_mlflow(judge, criterion).lines)
    ```

    Guidelines keep their sources: the episodes of the traces that MLflow distilled them from. So
    what is forgotten later takes its guidelines along. Reading the same judge twice gives the same.

    Args:
        judge: The aligned judge, or what its `model_dump()` returns.
        criterion: What the memory is about; its name may differ from the judge's.
        traces: The judge's traces, where they are at hand; unless given they are fetched from
            MLflow, which has to be installed for that.

    Returns:
        The memory's lines, and what could not be used.

    Raises:
        ImportError: If traces have to be fetched, and the extra `mlflow` is not installed.
        InvalidInputError: If the judge has no memory.
    """
    dumped = judge.model_dump() if hasattr(judge, "model_dump") else judge
    data = dumped.get(_MEMORY) if isinstance(dumped, Mapping) else None
    if not isinstance(data, Mapping):
        raise InvalidInputError(
            "judge: give a judge that MLflow's MemAlign aligned, or what its model_dump() returns: "
            f"this value of type {type(judge).__name__} has no memory."
        )
    wanted = [str(one) for one in data.get("episodic_trace_ids") or []]
    wanted = list(dict.fromkeys(wanted))
    given = list(read_traces(_fetch(wanted) if traces is None else traces))
    by_id = {trace_id_of(one): one for one in given if trace_id_of(one) in set(wanted)}
    by_trace: dict[str, list[Episode]] = {}
    found: list[ImportedFeedback] = []
    for trace_id, trace in by_id.items():
        read = feedback_from_mlflow([trace], criterion, name=str(dumped.get("name")))
        by_trace[trace_id] = [_episode(one) for one in read.feedback]
        found.append(read)
    episodes = _newest([one for group in by_trace.values() for one in group])
    guidelines, rejected = _guidelines(data.get("semantic_memory") or [], by_trace, episodes)
    return ImportedMemory(
        lines=_lines(criterion, guidelines, episodes),
        episodes=episodes,
        guidelines=guidelines,
        rejected=[*(one for read in found for one in read.rejected), *rejected],
        passed_over=_added(read.passed_over for read in found),
        missing_trace_ids=[one for one in wanted if one not in by_id],
    )


def _fetch(trace_ids: Sequence[str]) -> list[Any]:
    if not trace_ids:
        return []
    with needs_extra("mlflow", "memory_from_mlflow without `traces`"):
        import mlflow
    found = [mlflow.get_trace(one, silent=True) for one in trace_ids]
    return [one for one in found if one is not None]


def _episode(feedback: Feedback) -> Episode:
    """Make an episode that says the same each time it is read."""
    at = {"created_at": feedback.given_at, "updated_at": feedback.given_at}
    return Episode.from_feedback(feedback, "distilled").model_copy(update=at)


def _newest(episodes: Iterable[Episode]) -> list[Episode]:
    """Keep of one expert's words on one example the last."""
    newest: dict[str, Episode] = {}
    for one in sorted(episodes, key=lambda one: one.given_at):
        newest[one.id] = one
    return list(newest.values())


def _guidelines(
    semantic_memory: Sequence[Mapping[str, Any]],
    by_trace: Mapping[str, Sequence[Episode]],
    episodes: Sequence[Episode],
) -> tuple[list[Guideline], list[RejectedFeedback]]:
    """Make guidelines as old as the newest feedback: MLflow does not say when it wrote them."""
    at = max((one.given_at for one in episodes), default=datetime.fromtimestamp(0, UTC))
    made: dict[str, Guideline] = {}
    rejected = []
    for number, one in enumerate(semantic_memory):
        traces = [str(trace_id) for trace_id in one.get("source_trace_ids") or []]
        sources = {episode.id for key in traces for episode in by_trace.get(key, ())}
        try:
            text = check_guideline_text(one.get("guideline_text"))
        except InvalidInputError as error:
            reason = f"guideline {number + 1}: {error}"
            rejected.append(RejectedFeedback(id=None, reason=reason))
            continue
        guideline = Guideline(
            id=digest(["mlflow guideline", text]),
            text=text,
            episode_ids=sorted(sources),
            origin="distilled" if sources else "expert",
            position=int(at.timestamp() * 1_000_000) + number,
            created_at=at,
            updated_at=at,
        )
        made.setdefault(guideline.id, guideline)
    return list(made.values()), rejected


def _lines(
    criterion: Criterion, guidelines: Sequence[Guideline], episodes: Sequence[Episode]
) -> list[str]:
    items = [
        {"type": "memory", "format": FORMAT, "criterion": criterion.to_json(), "version": ""},
        *({"type": "guideline", **one.to_json()} for one in guidelines),
        *({"type": "episode", **one.to_json()} for one in episodes),
    ]
    return [json.dumps(one, ensure_ascii=False) for one in items]


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for one in counts:
        for why, count in one.items():
            total[why] += count
    return dict(total)
