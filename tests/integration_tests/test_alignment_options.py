"""Options and schemas of the graph: what can't be used is told when it is built."""

from typing import Any

import pytest

from memalign_graph import InvalidInputError, create_alignment_graph
from tests.conftest import Bench
from tests.integration_tests.alignment_support import alignment, builder, records

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": 7}, "model: give a chat model or a string"),
    "distill_model": ({"distill_model": object()}, "distill_model: give a chat model"),
    "embeddings": ({"embeddings": 7}, "embeddings: give LangChain embeddings"),
    "k": ({"k": -1}, "k: -1 is too little: give 0 or more"),
    "k-text": ({"k": "5"}, "k: '5' is not a whole number"),
    "learn_from": ({"learn_from": "rationales"}, "learn_from: 'rationales' is not known: give"),
    "learn_from-none": ({"learn_from": None}, "learn_from: None is not known"),
    "learn_from-list": ({"learn_from": ["labels"]}, "learn_from: ['labels'] is not known"),
    "conflicts": ({"conflicts": "oldest"}, "conflicts: 'oldest' is not known: give 'newest' or"),
    "guard": ({"guard": True}, "guard: True is not known: give 'replay'"),
    "batch_size": ({"batch_size": 0}, "batch_size: 0 is too little: give 1 or more"),
    "batch_size-float": ({"batch_size": 2.5}, "batch_size: 2.5 is not a whole number"),
    "batch_size-bool": ({"batch_size": True}, "batch_size: True is not a whole number"),
    "replay_cases": ({"replay_cases": "20"}, "replay_cases: '20' is not a whole number"),
    "max_guideline_tokens": (
        {"max_guideline_tokens": -1},
        "max_guideline_tokens: -1 is too little: give",
    ),
    "use_guidelines": ({"use_guidelines": "no"}, "use_guidelines: 'no' is"),
    "use_episodes": ({"use_episodes": None}, "use_episodes: None is"),
}


@pytest.mark.parametrize("wrong", list(WRONG))
async def test_option_that_can_not_be_used_is_told_in_one_sentence(
    bench: Bench, wrong: str
) -> None:
    options, sentence = WRONG[wrong]
    with pytest.raises(InvalidInputError) as caught:
        builder(bench, **options)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


async def test_criterion_that_is_none_is_told(bench: Bench) -> None:
    wrong: Any = "Is it polite?"
    with pytest.raises(InvalidInputError, match=r"^criterion: give a Criterion"):
        create_alignment_graph(wrong)


async def test_graph_without_a_store_is_told(bench: Bench) -> None:
    graph: Any = builder(bench).compile()
    with pytest.raises(InvalidInputError, match=r"^store: the graph has none"):
        await bench.invoke(graph, {"feedback": records(1)})


async def test_graph_can_be_drawn_and_its_schemas_be_read(bench: Bench) -> None:
    graph = alignment(bench, conflicts="ask", guard="replay")
    drawn = graph.get_graph().draw_mermaid()
    for node in ("remember_feedback", "distill_batches", "settle_conflicts", "replay_cases"):
        assert node in drawn
    assert set(graph.get_input_jsonschema()["properties"]) == {"feedback"}
    assert set(graph.get_output_jsonschema()["properties"]) == {"report"}
