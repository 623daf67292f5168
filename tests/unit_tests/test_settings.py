"""Options: each declared once, and what can't be used refused in a sentence that says the mend."""

from datetime import timedelta
from typing import Any

import pytest

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
from memalign_graph.settings import context_schema, default_settings, resolve_context

CRITERION = Criterion(name="tone", instructions="Is it kind?")
PAIR = Criterion(name="pair", instructions="Which is kinder?", scale=Pairwise())

REFUSED: list[tuple[str, Any, str]] = [
    ("criterion", "tone", "criterion: give a Criterion"),
    ("criterion", {"name": "tone", "instructions": "?"}, "criterion: give a Criterion"),
    ("model", 5, "model: give a chat model or a string"),
    ("model", None, "model: give a chat model or a string"),
    ("distill_model", 5, "distill_model: give a chat model or a string"),
    ("distill_model", ["openai:gpt-4.1"], "distill_model: give a chat model or a string"),
    ("embeddings", 5, "embeddings: give LangChain embeddings, a function, or a string"),
    ("embeddings", None, "embeddings: give LangChain embeddings, a function, or a string"),
    ("k", -1, "k: -1 is too little: give 0 or more."),
    ("k", True, "k: True is not a whole number: give one."),
    ("use_guidelines", 1, "use_guidelines: 1 is neither True nor False"),
    ("use_guidelines", None, "use_guidelines: None is neither True nor False"),
    ("use_episodes", "no", "use_episodes: 'no' is neither True nor False"),
    ("use_episodes", 0, "use_episodes: 0 is neither True nor False"),
    ("max_guideline_tokens", -1, "max_guideline_tokens: -1 is too little: give 0 or more."),
    ("max_guideline_tokens", True, "max_guideline_tokens: True is not a whole number"),
    ("on_embedding_error", "ignore", "'ignore' is not known: give 'raise' or 'guidelines'."),
    ("on_embedding_error", None, "None is not known: give 'raise' or 'guidelines'."),
    ("swap", True, "swap: only a criterion with scale=Pairwise()"),
    ("swap", "yes", "swap: 'yes' is neither True nor False"),
    ("cite_guidelines", 1, "cite_guidelines: 1 is neither True nor False"),
    ("cite_guidelines", "all", "cite_guidelines: 'all' is neither True nor False"),
    ("keep_judgments", 30, "keep_judgments: 30 is no length of time: give one such as"),
    ("keep_judgments", timedelta(0), "keep_judgments: datetime.timedelta(0) is too little"),
    ("confidence", "yes", "confidence: 'yes' is neither True nor False"),
    ("confidence", 1, "confidence: 1 is neither True nor False"),
    ("samples", 51, "samples: 51 is too much: give at most 50."),
    ("samples", 5, "samples: they measure the confidence: give confidence=True, too."),
    ("decide", "both", "decide: 'both' is not known: give 'verdict' or 'evidence'."),
    ("decide", None, "decide: None is not known: give 'verdict' or 'evidence'."),
]

REVIEW: list[tuple[str, Any, str]] = [
    ("review", "sometimes", "review: 'sometimes' is not known: give 'always', 'never'"),
    ("review", None, "review: None is not known: give 'always', 'never'"),
    ("review", Uncertain(), 'review: "uncertain" goes by how sure the judge is'),
    ("clarify", 1, "clarify: 1 is neither True nor False"),
    ("clarify", "yes", "clarify: 'yes' is neither True nor False"),
]

ALIGNMENT: list[tuple[str, Any, str]] = [
    ("learn_from", "values", "'values' is not known: give 'both', 'labels' or 'words'."),
    ("learn_from", None, "learn_from: None is not known"),
    ("conflicts", "oldest", "conflicts: 'oldest' is not known: give 'newest' or 'ask'."),
    ("conflicts", None, "conflicts: None is not known"),
    ("guard", "judge", "guard: 'judge' is not known: give 'replay'."),
    ("guard", True, "guard: True is not known: give 'replay'."),
    ("batch_size", 0, "batch_size: 0 is too little: give 1 or more."),
    ("batch_size", "50", "batch_size: '50' is not a whole number: give one."),
    ("replay_cases", 0, "replay_cases: 0 is too little: give 1 or more."),
    ("replay_cases", True, "replay_cases: True is not a whole number: give one."),
    ("judge_cases", 1, "judge_cases: 1 is neither True nor False"),
    ("judge_cases", None, "judge_cases: None is neither True nor False"),
    ("distill", 0, "distill: 0 is neither True nor False"),
    ("distill", "no", "distill: 'no' is neither True nor False"),
]

UNCERTAIN: list[tuple[str, Any, str]] = [
    ("target_agreement", 1, "target_agreement: 1 is too much: give less than 1.0."),
    ("target_agreement", "90 %", "target_agreement: '90 %' is not a number: give one."),
    ("per_day", 0, "per_day: 0 is too little: give 1 or more."),
    ("per_day", 0.5, "per_day: 0.5 is not a whole number: give one."),
    ("sample_share", 2, "sample_share: 2 is too much: give at most 1.0."),
    ("sample_share", None, "sample_share: None is not a number: give one."),
]


def refused(make: Any, *given: Any, **options: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        make(*given, **options)
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(("option", "value", "sentence"), REFUSED)
def test_option_of_a_judge_is_refused_by_name(option: str, value: Any, sentence: str) -> None:
    said = refused(Judge, **{"criterion": CRITERION, option: value})
    assert option in said
    assert sentence in said


@pytest.mark.parametrize(
    "build",
    [
        create_judge_graph,
        create_review_graph,
        create_feedback_graph,
        create_alignment_graph,
        JudgeNodes,
    ],
)
def test_every_builder_refuses_as_a_judge_does(build: Any) -> None:
    assert refused(build, CRITERION, k=-1) == refused(Judge, criterion=CRITERION, k=-1)
    assert "modle: is not a field that is known here" in refused(build, CRITERION, modle="x")
    assert "criterion: give a Criterion" in refused(build, "tone")


@pytest.mark.parametrize(("option", "value", "sentence"), REVIEW)
def test_option_of_a_review_graph_is_refused(option: str, value: Any, sentence: str) -> None:
    assert sentence in refused(create_review_graph, CRITERION, **{option: value})


async def _later(_judgment: Any) -> bool:
    return True


def test_async_function_of_review_is_refused() -> None:
    assert "review: give a plain function" in refused(create_review_graph, CRITERION, review=_later)


@pytest.mark.parametrize(("option", "value", "sentence"), ALIGNMENT)
def test_option_of_an_alignment_is_refused(option: str, value: Any, sentence: str) -> None:
    assert sentence in refused(create_alignment_graph, CRITERION, **{option: value})


@pytest.mark.parametrize(("option", "value", "sentence"), UNCERTAIN)
def test_option_of_uncertain_is_refused(option: str, value: Any, sentence: str) -> None:
    assert sentence in refused(Uncertain, **{option: value})


def test_every_option_is_in_the_tables_with_two_wrong_values() -> None:
    tabled = [option for option, _, _ in REFUSED]
    assert {option: tabled.count(option) for option in Judge.model_fields} == dict.fromkeys(
        Judge.model_fields, 2
    )
    assert [option for option, _, _ in UNCERTAIN] == [
        option for option in Uncertain.model_fields for _ in range(2)
    ]


def test_flat_keywords_are_the_fields_of_a_judge() -> None:
    assert ["criterion", *JudgeOptions.__annotations__] == list(Judge.model_fields)


def test_judge_with_other_options_is_checked_again() -> None:
    judge = Judge(criterion=PAIR, swap=True, k=3)
    assert judge.but(k=7).options == {**judge.options, "k": 7}
    assert "swap: only a criterion" in refused(judge.but, criterion=CRITERION)


def test_context_goes_before_what_was_built_and_keeps_the_rest() -> None:
    built = default_settings(Judge(criterion=CRITERION, k=3), "always")
    assert built == {"namespace": ["memalign"], "k": 3, "model": None, "review": "always"}
    given = resolve_context({"memalign": {"namespace": "shop", "model": " "}}, built)
    assert given == {**built, "namespace": ["shop"]}
    assert resolve_context(MemAlignContext(k=0), built) == {**built, "k": 0}
    assert resolve_context({"other": 1}, built) == built
    assert "context: k" in refused(resolve_context, {"memalign": {"k": 101}}, built)


@pytest.mark.parametrize(
    ("builder", "fields"),
    [
        (create_judge_graph, ["namespace", "k", "model"]),
        (create_review_graph, ["namespace", "k", "model", "review"]),
        (create_feedback_graph, ["namespace", "model"]),
        (create_alignment_graph, ["namespace", "k", "model"]),
    ],
)
def test_form_of_a_run_offers_what_does_something(builder: Any, fields: list[str]) -> None:
    schema = builder(CRITERION).compile().get_context_jsonschema()
    assert list(schema["properties"]) == fields


def test_context_of_a_graph_is_checked_by_field() -> None:
    form: Any = context_schema(k=3, model="openai:gpt-4.1")
    assert (form().k, form(model="").model) == (3, None)
    assert "context: review: is not a field" in refused(form, review="always")
    assert "context: k: 101 is too much" in refused(form, k=101)
    assert "namespace" in refused(form, namespace=["a.b"])
