"""What a writer is told."""

from typing import Any

from langchain_core.messages import HumanMessage

from memalign_graph import Criterion, Example, Feedback, Judgment, Numeric
from memalign_graph.conversation import critique_message, critique_text, wrote
from memalign_graph.reading import PassRule
from memalign_graph.types import Evidence
from tests.conftest import CRITERION

EXAMPLE = Example(inputs="Q", outputs="A")
OUTWEIGHED = Evidence(decided_by="evidence", reason="It foretells better.", verdict=True)


def judgment(value: Any, rationale: str = "It is cold.", **more: Any) -> Judgment:
    return Judgment(
        criterion=CRITERION.name,
        example_id=EXAMPLE.id,
        value=value,
        rationale=rationale,
        memory_version="",
        **more,
    )


def told(criterion: Criterion, given: Judgment, *broken: str, **said: Any) -> str:
    feedback = Feedback(example=EXAMPLE, **said) if said else None
    passes = 4 if isinstance(criterion.scale, Numeric) else True
    rule = PassRule.of(criterion.scale, passes)
    return critique_text(criterion, rule, given, feedback, broken)


def test_judges_reason_value_and_the_guidelines_broken_are_told() -> None:
    text = told(CRITERION, judgment(False), "Say sorry.", "Be brief.")
    for part in ("false", "It is cold.", "- Say sorry.", "- Be brief."):
        assert part in text
    assert "expert" not in text
    stars = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=5, integer=True)})
    assert "The result is: 2. It has to be: 4 or more." in told(stars, judgment(2))
    assert not told(CRITERION, judgment(False, "")).rstrip().endswith("says:")


def test_experts_word_goes_before_the_judges_also_without_a_reason() -> None:
    given = judgment(True, "It is warm.")
    text = told(CRITERION, given, "Say sorry.", value=False, rationale="Too cold.")
    assert "false" in text
    assert "An expert says: Too cold." in text
    bare = told(CRITERION, given, "Say sorry.", value=False)
    assert "An expert decided so, and gave no reason." in bare
    for said in (text, bare):
        assert "It is warm." not in said
        assert "Say sorry." not in said


def test_reason_of_an_outweighed_judge_is_not_told() -> None:
    given = judgment(False, "It is warm.", evidence=OUTWEIGHED)
    text = told(CRITERION, given, "Say sorry.")
    assert "It is warm." not in text
    assert "Say sorry." not in text
    assert "Experts did not accept the answers most like this one." in text
    text = told(CRITERION, given, value=False, rationale="Too cold.")
    assert "Too cold." in text
    assert "most like this one" not in text


def test_message_is_a_humans_and_marked_as_a_gates() -> None:
    message = critique_message("Too cold.", "quality_gate")
    assert type(message) is HumanMessage
    assert message.text.startswith("Too cold.")
    assert wrote(message)
    assert not wrote(HumanMessage(message.text))
