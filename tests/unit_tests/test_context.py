"""The run's settings: a form, and how they come together."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from memalign_graph import (
    Criterion,
    InvalidInputError,
    MemAlignContext,
    create_feedback_graph,
    create_judge_graph,
    create_review_graph,
)
from memalign_graph.settings import Judge, default_settings, resolve_context

CRITERION = Criterion(name="tone", instructions="?")
BUILT = {"namespace": ["memalign"], "k": 3, "model": "openai:own", "review": "always"}


def form(graph: Any) -> dict[str, Any]:
    schema = graph.compile().get_context_jsonschema()
    assert schema is not None
    return dict(schema["properties"])


def test_form_has_descriptions_bounds_and_defaults() -> None:
    fields = form(create_review_graph(CRITERION))
    assert list(fields) == ["namespace", "k", "model", "review"]
    assert all(field["description"] for field in fields.values())
    assert (fields["k"]["minimum"], fields["k"]["maximum"]) == (0, 100)
    assert {name: field["default"] for name, field in fields.items()} == {
        "namespace": ["memalign"],
        "k": 5,
        "model": "openai:gpt-4.1-mini",
        "review": "always",
    }


def test_form_shows_what_the_graph_was_built_with() -> None:
    def asks(judgment: Any) -> bool:
        return True

    fields = form(create_review_graph(CRITERION, k=2, model="openai:gpt-other", review=asks))
    defaults = {name: fields[name]["default"] for name in ("k", "model", "review")}
    assert defaults == {"k": 2, "model": "openai:gpt-other", "review": None}
    assert (fields["k"]["minimum"], fields["k"]["maximum"]) == (0, 100)
    judge = form(create_judge_graph(CRITERION, use_episodes=False))
    assert list(judge) == ["namespace", "k", "model"]
    assert judge["k"]["default"] == 5
    assert list(form(create_feedback_graph(CRITERION))) == ["namespace", "model"]


def test_built_settings_stand_where_nothing_is_set() -> None:
    for context in (None, MemAlignContext(), MemAlignContext(model=None, review=None)):
        assert resolve_context(context, BUILT) == BUILT


def test_what_is_set_goes_before_what_was_built() -> None:
    context = MemAlignContext(namespace=("a", "b"), k=0, model="openai:x", review="never")
    assert resolve_context(context, BUILT) == {
        "namespace": ["a", "b"],
        "k": 0,
        "model": "openai:x",
        "review": "never",
    }
    assert resolve_context(MemAlignContext(k=1), BUILT) == {**BUILT, "k": 1}


@pytest.mark.parametrize(
    "context",
    [
        {"user": "ann"},
        {"k": 9, "model": "not ours"},
        SimpleNamespace(user="ann", k=9),
        SimpleNamespace(memalign=None),
        {"memalign": {}},
        "text",
        7,
    ],
    ids=repr,
)
def test_foreign_context_changes_nothing(context: Any) -> None:
    assert resolve_context(context, BUILT) == BUILT


@pytest.mark.parametrize("settings", [{"k": 1}, MemAlignContext(k=1)], ids=["dict", "model"])
def test_parents_context_may_hold_ours(settings: Any) -> None:
    for context in ({"memalign": settings}, SimpleNamespace(memalign=settings)):
        assert resolve_context(context, BUILT) == {**BUILT, "k": 1}


@pytest.mark.parametrize("settings", [{"k": -1}, {"deep": 1}, "text", {"namespace": ["a.b"]}])
def test_parents_bad_settings_are_one_sentence(settings: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^context: ") as caught:
        resolve_context({"memalign": settings}, BUILT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"k": -1},
        {"k": 101},
        {"k": "many"},
        {"review": "unsure"},
        {"namespace": ()},
        {"namespace": ("a", "")},
        {"namespace": ("a.b",)},
        {"namespace": ("langgraph",)},
        {"namespace": (1,)},
        {"top_k": 3},
    ],
    ids=repr,
)
def test_bad_field_is_refused_by_name(fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(ValidationError, match=name):
        MemAlignContext.model_validate(fields)


def test_string_is_a_namespace_of_one_label() -> None:
    assert MemAlignContext.model_validate({"namespace": "team"}).namespace == ("team",)


def test_defaults_of_settings_and_context_agree() -> None:
    context = MemAlignContext()
    settings = default_settings(Judge(criterion=CRITERION))
    assert settings["k"] == context.k
    assert tuple(settings["namespace"]) == context.namespace
