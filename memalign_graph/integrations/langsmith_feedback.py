"""What people said in LangSmith, as feedback: from the client's objects, or from exported JSON."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel

from memalign_graph.errors import InvalidInputError
from memalign_graph.integrations.imported import Import, ImportedFeedback, make_example
from memalign_graph.integrations.plain import given_or_none, plain_json
from memalign_graph.scales import Boolean, Numeric, Scale
from memalign_graph.types import Criterion

PEOPLE = ("app", "api")
"""Where a person's feedback comes from: LangSmith's own pages, and applications that pass on what
their users say. `model` and `auto_eval` are judges."""

NOTE = "note"
"""The key under which LangSmith keeps a reviewer's free words on a run."""

_REASONS = ("comment", "explanation", "reasoning", "rationale")
_VALUES = ("value", "score")

Fields = dict[str, Any]


def feedback_from_langsmith(
    runs: Iterable[Any],
    feedback: Iterable[Any] = (),
    *,
    criterion: Criterion,
    key: str | None = None,
    sources: Collection[str] | None = PEOPLE,
    examples: Iterable[Any] = (),
    example: Callable[[Any], Any] | None = None,
) -> ImportedFeedback:
    """Read what people said about runs in LangSmith.

    ```python
    runs = list(client.list_runs_from_annotation_queue(queue_id))
    feedback = client.list_feedback(run_ids=[run.id for run in runs])
    imported = feedback_from_langsmith(runs, feedback, criterion=criterion)
    graph.invoke({"feedback": imported.feedback})  # create_alignment_graph
    ```

    A reviewer's score or value becomes the value, the comment the rationale; what the same person
    wrote as a note on the run is added to it. A correction goes before the score, also one of a
    judge's score, which makes it the corrector's word: the judge's own comment is then left out. A
    correction that is no value says in the rationale what the output should have been. Of several
    words of one person on one run the newest counts.

    Args:
        runs: `Run`s, runs of an annotation queue, or the same as JSON objects; an object may bring
            its own feedback under `feedback`.
        feedback: What `Client.list_feedback` gives, or the same as JSON objects.
        criterion: What the feedback has to be about.
        key: The feedback's key in LangSmith; the criterion's name unless given.
        sources: The types of source that are people; None for all that there are.
        examples: The data set's examples that runs refer to, for `reference_outputs`.
        example: Makes the example of a run, say of one field of its outputs; unless given its
            `inputs` and `outputs` are taken as they are.

    Returns:
        The feedback, what was rejected and why, and what was passed over.

    Raises:
        InvalidInputError: If something given is neither LangSmith's nor JSON objects.
    """
    found = Import(criterion)
    key = criterion.name if key is None else key
    by_id, records = _read_runs(runs)
    records += [_fields(one, "feedback") for one in _each(feedback, "feedback")]
    # A run that brings its own feedback may have it in the list as well.
    once = {_text(one.get("id")) or id(one): one for one in records}
    said = [_Said(one, sources) for one in once.values()]
    references = {
        str(one.get("id")): given_or_none(one.get("outputs"))
        for one in (_fields(one, "examples") for one in _each(examples, "examples"))
    }
    _tell_of_means(by_id, key, {one.run_id for one in said}, found)
    for one, notes in _sort_out(said, key, found):
        run = by_id.get(one.run_id or "")
        if run is None:
            found.reject(one.id, f"run {one.run_id} is not among the runs: give it as well.")
            continue
        value, words = one.word(criterion.scale)
        found.add(
            value=value,
            example=partial(run.example, references, example),
            rationale="\n".join([*words, *notes]),
            author=one.author,
            id=one.id,
            given_at=one.at,
        )
    return found.result()


@dataclass(frozen=True)
class _Run:
    """One run."""

    given: Any
    """As it was given."""

    fields: Fields

    def example(
        self, references: Mapping[str, Any], mapping: Callable[[Any], Any] | None
    ) -> Fields:
        fields = {
            "inputs": given_or_none(self.fields.get("inputs")),
            "outputs": given_or_none(self.fields.get("outputs")),
            "reference_outputs": references.get(str(self.fields.get("reference_example_id"))),
        }
        return make_example(fields, mapping, self.given)


@dataclass(frozen=True)
class _Said:
    """One feedback record."""

    fields: Fields

    sources: Collection[str] | None
    """The sources that are people."""

    @property
    def id(self) -> str | None:
        return _text(self.fields.get("id"))

    @property
    def run_id(self) -> str | None:
        return _text(self.fields.get("run_id"))

    @property
    def key(self) -> Any:
        return self.fields.get("key")

    @property
    def at(self) -> Any:
        return self.fields.get("modified_at") or self.fields.get("created_at")

    @property
    def _source(self) -> Mapping[str, Any]:
        source = self.fields.get("feedback_source")
        return source if isinstance(source, Mapping) else {}

    @property
    def source(self) -> str | None:
        return _text(self._source.get("type"))

    @property
    def author(self) -> str | None:
        if not self.by_person:
            return None  # whose judge it is does not say who corrected it
        return _text(self._source.get("user_name")) or _text(self._source.get("user_id"))

    @property
    def correction(self) -> Any:
        return given_or_none(self.fields.get("correction"))

    @property
    def by_person(self) -> bool:
        return self.sources is None or self.source in self.sources

    def word(self, scale: Scale) -> tuple[Any, list[str]]:
        """Return the value that the person gave, if any, and the person's words."""
        correction = self.correction
        if correction is None:
            return _value(self.fields, scale), _words([self.fields.get("comment")])
        if not isinstance(correction, Mapping):
            correction = {"outputs": correction}
        corrected = _value(correction, scale)
        words = [correction.get(name) for name in _REASONS]
        if self.by_person:
            words.append(self.fields.get("comment"))
        rest = {name: one for name, one in correction.items() if name not in (*_VALUES, *_REASONS)}
        if corrected is None and rest:
            words.append(f"The output should have been: {_shown(rest)}")
        if corrected is None and self.by_person:
            corrected = _value(self.fields, scale)
        return corrected, _words(words)


def _sort_out(said: list[_Said], key: str, found: Import) -> list[tuple[_Said, list[str]]]:
    """Return what counts, with the notes that go with it; the rest is passed over."""
    notes: defaultdict[tuple[str | None, str | None], list[_Said]] = defaultdict(list)
    counts: list[_Said] = []
    for one in said:
        if one.key == NOTE and key != NOTE:
            notes[one.run_id, one.author].append(one)
        elif one.key != key:
            found.pass_over(f"the key is {one.key!r}, not {key!r}")
        elif one.fields.get("feedback_group_id") is not None:
            found.pass_over("it is a preference between runs, not a value of one")
        elif not one.by_person and one.correction is None:
            found.pass_over(f"its source is {one.source!r}, which is no person")
        else:
            counts.append(one)
    spoke = {(one.run_id, one.author) for one in counts if one.author is not None}
    for place, group in notes.items():
        if place not in spoke:
            for _ in group:
                found.pass_over(f"it is a note of somebody who said nothing of {key!r}")
    return [(one, _noted(one, notes)) for one in counts]


def _noted(one: _Said, notes: Mapping[Any, list[_Said]]) -> list[str]:
    """Return what the same person noted on the run; of somebody unknown nothing is known."""
    if one.author is None:
        return []
    return _words(note.fields.get("comment") for note in notes.get((one.run_id, one.author), ()))


def _read_runs(runs: Iterable[Any]) -> tuple[dict[str, _Run], list[Fields]]:
    """Return the runs by id, and the feedback that they bring along."""
    by_id: dict[str, _Run] = {}
    records: list[Fields] = []
    for given in _each(runs, "runs"):
        fields = _fields(given, "runs")
        run_id = _text(fields.get("id")) or _text(fields.get("run_id"))
        if run_id is None:
            raise InvalidInputError("runs: a run has no `id`: give runs as LangSmith has them.")
        by_id[run_id] = _Run(given, fields)
        own = fields.get("feedback")
        if isinstance(own, list):
            records += [{"run_id": run_id, **_fields(one, "runs.feedback")} for one in own]
    return by_id, records


def _tell_of_means(
    runs: Mapping[str, _Run], key: str, heard: Collection[str | None], found: Import
) -> None:
    """Say that an export's statistics name nobody and can't be taken for a person's word."""
    for run_id, run in runs.items():
        stats = run.fields.get("feedback_stats")
        if isinstance(stats, Mapping) and key in stats and run_id not in heard:
            found.reject(
                None,
                f"run {run_id} has only `feedback_stats` of {key!r}, which do not say whose word "
                "it is: give what `list_feedback` returns as well.",
            )


def _value(fields: Mapping[str, Any], scale: Scale) -> Any:
    """Return the score or the value, the one first that the scale's values are kept in."""
    names = ("score", "value") if isinstance(scale, Boolean | Numeric) else ("value", "score")
    for name in names:
        value = given_or_none(fields.get(name))
        if value is not None and value != "":
            return value
    return None


def _words(given: Iterable[Any]) -> list[str]:
    return [one.strip() for one in given if isinstance(one, str) and one.strip()]


def _shown(rest: Mapping[str, Any]) -> str:
    only = next(iter(rest.values())) if len(rest) == 1 else rest
    return only if isinstance(only, str) else json.dumps(plain_json(only), ensure_ascii=False)


def _text(value: Any) -> str | None:
    return None if value is None or not str(value).strip() else str(value)


def _each(given: Iterable[Any], name: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping | BaseModel) or not isinstance(given, Iterable):
        raise InvalidInputError(
            f"{name}: give a list of what LangSmith's client returns, or of JSON objects, not a "
            f"value of type {type(given).__name__}."
        )
    return list(given)


def _fields(given: Any, name: str) -> Fields:
    if isinstance(given, BaseModel):
        return {field: getattr(given, field, None) for field in type(given).model_fields} | {
            "feedback_source": plain_json(getattr(given, "feedback_source", None))
        }
    if isinstance(given, Mapping):
        return dict(given)
    raise InvalidInputError(
        f"{name}: give what LangSmith's client returns, or JSON objects, not a value of type "
        f"{type(given).__name__}."
    )
