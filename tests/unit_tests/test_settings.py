"""Options are declared once; an invalid one raises a helpful error."""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from langchain_core.language_models import FakeListChatModel
from pydantic import BaseModel, ValidationError

from memalign_graph import (
    Criterion,
    InvalidInputError,
    Judge,
    JudgeNodes,
    JudgeOptions,
    MemAlignContext,
    Pairwise,
    Uncertain,
    create_alignment_graph,
    create_feedback_graph,
    create_judge_graph,
    create_review_graph,
)
from memalign_graph.runtime import JudgeResources
from memalign_graph.settings import (
    Alignment,
    AlignmentOptions,
    ReviewSettings,
    Settings,
    resolve_context,
)

CRITERION = Criterion(name="tone", instructions="Is it kind?")
BUILDERS: list[Any] = [
    create_judge_graph,
    create_review_graph,
    create_feedback_graph,
    create_alignment_graph,
]
CHAT = FakeListChatModel(responses=[])
PAIR = Criterion(name="pair", instructions="Which is kinder?", scale=Pairwise())

REFUSED: list[tuple[str, Any, str]] = [
    ("criterion", "tone", "criterion: expected a Criterion"),
    ("model", 5, "model: expected a chat model or a string"),
    ("model", "gpt-4.1", "model: 'gpt-4.1' names no model: write it as 'provider:name'"),
    ("model", CHAT.bind(seed=7), "Set options on the model itself, not by .bind()."),
    ("model", CHAT.bind(seed=7).with_retry(), "not by .bind()."),
    ("distill_model", CHAT.with_fallbacks([CHAT.bind(stop="x")]), "not by .bind()."),
    ("distill_model", 5, "distill_model: expected a chat model or a string"),
    ("distill_model", "", "distill_model: '' names no model: write it as 'provider:name'"),
    ("embeddings", 5, "embeddings: expected LangChain embeddings, a function, or a string"),
    ("k", -1, "k: -1 is below the minimum of 0. Use 0 or more."),
    ("k", True, "k: True is not a whole number."),
    ("small_model", 1, "small_model: 1 is neither True nor False"),
    ("models", "openai:gpt-4.1", "models: 'openai:gpt-4.1' is not a list."),
    ("models", ("openai:x", "gpt-4"), "models: 'gpt-4' names no model"),
    ("models", (1,), "models.0: 1 is not text."),
    ("max_guideline_tokens", -1, "max_guideline_tokens: -1 is below the minimum of 0."),
    ("on_embedding_error", "ignore", "'ignore' is not known: give 'raise' or 'guidelines'."),
    ("swap", True, "swap: only a criterion with scale=Pairwise()"),
    ("keep_judgments", 30, "keep_judgments: 30 is not a duration. Use one such as"),
    ("keep_judgments", timedelta(0), "keep_judgments: datetime.timedelta(0) is too small"),
    ("samples", 51, "samples: 51 is above the maximum of 50. Use 50 or less."),
    ("samples", 5, "samples: needs confidence=True, which the samples measure."),
    ("checks", 1, "checks: expected True, False or 'auto'"),
    ("decide", "both", "decide: 'both' is not known: give 'auto', 'verdict' or 'evidence'."),
]


async def _later(_judgment: Any) -> bool:
    return True


REVIEW: list[tuple[str, Any, str]] = [
    ("review", "sometimes", "review: 'sometimes' is not known: give 'always', 'never'"),
    ("review", Uncertain(), 'review: "uncertain" needs a confidence'),
    ("review", _later, "review: give a plain function"),
]
ALIGNMENT: list[tuple[str, Any, str]] = [
    ("learn_from", "values", "'values' is not known: give 'both', 'labels' or 'words'."),
    ("conflicts", "oldest", "conflicts: 'oldest' is not known: give 'newest' or 'ask'."),
    ("guard", "judge", "guard: 'judge' is not known: give 'replay'."),
    ("batch_size", 0, "batch_size: 0 is below the minimum of 1. Use 1 or more."),
    ("batch_size", "50", "batch_size: '50' is not a whole number."),
    ("replay_cases", 0, "replay_cases: 0 is below the minimum of 1. Use 1 or more."),
]
UNCERTAIN: list[tuple[str, Any, str]] = [
    ("target_agreement", 1, "target_agreement: 1 is above the maximum of 0.9999. Use 0.9999 or"),
    ("target_agreement", "90 %", "target_agreement: '90 %' is not a number."),
    ("per_day", 0, "per_day: 0 is below the minimum of 1. Use 1 or more."),
    ("per_day", 0.5, "per_day: 0.5 is not a whole number."),
    ("sample_share", 2, "sample_share: 2 is above the maximum of 1.0. Use 1.0 or less."),
]
TABLES: list[tuple[Any, type[Settings], list[tuple[str, Any, str]]]] = [
    (partial(Judge, criterion=CRITERION), Judge, REFUSED),
    (partial(create_review_graph, CRITERION, decide="verdict"), ReviewSettings, REVIEW),
    (partial(create_alignment_graph, CRITERION), Alignment, ALIGNMENT),
    (Uncertain, Uncertain, UNCERTAIN),
]


def booleans(settings: type[Settings]) -> list[str]:
    return [name for name, field in settings.model_fields.items() if field.annotation is bool]


def refused(make: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        make(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("make", "settings", "table"), TABLES)
def test_option_is_refused_by_name(make: Any, settings: Any, table: Any) -> None:
    flags = [(name, 1, f"{name}: 1 is neither True nor False") for name in booleans(settings)]
    for option, value, sentence in [*table, *flags]:
        message = refused(make, **{option: value})
        assert option in message
        assert sentence in message
    options = {option for option, *_ in [*table, *flags]}
    assert options | {"judge"} == {*settings.model_fields, "judge"}


def test_every_builder_refuses_as_a_judge_does() -> None:
    for build in (*BUILDERS, JudgeNodes):
        assert "embeddings: 'x' names no model" in refused(build, CRITERION, embeddings="x")
        assert refused(build, CRITERION, k=-1) == refused(Judge, criterion=CRITERION, k=-1)
        assert "modle: is not a known field" in refused(build, CRITERION, modle="x")
        assert "criterion: expected a Criterion" in refused(build, "tone")


def test_judge_with_other_options_is_checked_again() -> None:
    assert ["criterion", *JudgeOptions.__annotations__] == list(Judge.model_fields)
    alignment = {*Alignment.model_fields, *JudgeOptions.__annotations__}
    assert {"judge", *AlignmentOptions.__annotations__} == alignment
    judge = Judge(criterion=PAIR, swap=True, k=3)
    assert judge.but(k=7).options == {**judge.options, "k": 7}
    assert "swap: only a criterion" in refused(judge.but, criterion=CRITERION)


@dataclass(slots=True)
class Base:
    memalign: Any


@dataclass(slots=True)
class Slotted(Base):
    user: str = "ann"


class Tuple(NamedTuple):
    memalign: Any


class Extended(BaseModel, extra="allow"):
    user: str = "ann"


def test_context_overrides_the_built_settings_and_keeps_the_rest() -> None:
    judge = Judge(criterion=CRITERION, k=3)
    built = JudgeResources(judge, "always").defaults
    assert built == {"namespace": ["memalign"], "k": 3, "model": None, "review": "always"}
    foreign = SimpleNamespace(user="ann", k=9)
    others = [{"k": 9, "model": "not ours"}, foreign, {"memalign": {}}, "text", 7]
    unset = [None, MemAlignContext(), MemAlignContext(model=None, review=None)]
    for context in (*unset, *others):
        assert resolve_context(context, built, judge) == built
    context = MemAlignContext(namespace=("a", "b"), k=0, model="openai:x", review="never")
    arguments = {"namespace": ["a", "b"], "k": 0, "model": "openai:x", "review": "never"}
    assert resolve_context(context, built, judge) == arguments
    own = MemAlignContext(k=1)
    kinds: list[Any] = [SimpleNamespace, Slotted, Tuple, Extended]
    parents = [kind(memalign=own) for kind in kinds]
    for parent in ({"memalign": {"k": 1}}, *parents):
        assert resolve_context(parent, built, judge) == {**built, "k": 1}


@pytest.mark.parametrize(
    "fields",
    [
        *({"k": -1}, {"k": True}, {"review": "unsure"}, {"namespace": ()}),
        *({"namespace": ("a.b",)}, {"top_k": 3}),
    ],
    ids=repr,
)
def test_bad_field_of_a_context_is_refused_by_name(fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(ValidationError, match=name):
        MemAlignContext.model_validate(fields)
    judge = Judge(criterion=CRITERION)
    assert "context: " in refused(resolve_context, {"memalign": fields}, {}, judge)


def test_form_of_a_run_has_no_defaults_of_the_graph() -> None:
    for build in BUILDERS:
        fields = build(CRITERION, k=2).compile().get_context_jsonschema()["properties"]
        defaults = {"namespace": ["memalign"], "k": None, "model": None, "review": None}
        assert {name: field["default"] for name, field in fields.items()} == defaults
        assert all(field["description"] for field in fields.values())


def test_context_fields_may_be_nested_under_memalign() -> None:
    fields = {"namespace": ["acme"], "k": 3}
    assert MemAlignContext(memalign=fields) == MemAlignContext(**fields)
    assert MemAlignContext(model="").model is None
    assert "context: k: 101 is above the maximum" in refused(MemAlignContext, memalign={"k": 101})
    message = refused(MemAlignContext, memalign=fields, k=1)
    assert "context: memalign: is not a known field" in message
    message = refused(resolve_context, {"memalign": {"model": "x"}}, {}, Judge(criterion=CRITERION))
    assert "context: model: 'x' names no model" in message
    message = refused(MemAlignContext, memalign={1: 2})
    assert message == refused(resolve_context, {"memalign": {1: 2}}, {}, Judge(criterion=CRITERION))
    assert "context: 1: is not a known field" in message
    message = refused(resolve_context, {"memalign": 7}, {}, Judge(criterion=CRITERION))
    assert "context: memalign: expected a dict of fields, got int" in message
