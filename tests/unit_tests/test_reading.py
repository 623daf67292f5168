"""What callers give: fields, tables with empty cells, and what is neither."""

from typing import Any

import numpy as np
import pytest

from memalign_graph import Example, Feedback, InvalidInputError, JudgeMemory
from memalign_graph.reading import read_example, read_feedback
from tests.unit_tests.memory.support import CRITERION, hashed, in_memory

ROW = {"inputs": "q", "outputs": "a"}
NAN = float("nan")


class NAType:
    """As pandas has it: equal to nothing, and neither true nor false."""

    def __bool__(self) -> bool:
        raise TypeError


@pytest.mark.parametrize("nothing", [NAN, np.float64("nan"), NAType(), None])
def test_an_empty_cell_is_not_there(nothing: Any) -> None:
    given = {**ROW, "reference_outputs": nothing, "author": nothing, "id": nothing}
    words = read_feedback({**given, "value": nothing, "rationale": "Too cold."})
    assert (words.value, words.rationale, words.author, words.id) == (None, "Too cold.", None, None)
    value = read_feedback({**given, "value": True, "rationale": nothing, "given_at": nothing})
    assert (value.value, value.rationale) == (True, None)


def test_numbers_of_numpy_are_numbers() -> None:
    assert read_feedback({**ROW, "value": True, "id": 7.0}).id == "7"  # of a column that has gaps
    read = read_feedback({**ROW, "value": np.bool_(True), "id": np.int64(7)})
    assert (read.value, read.id) == (True, "7")
    assert read_feedback({**ROW, "value": np.float32(0.5)}).value == 0.5


def test_feedback_and_example_are_taken_as_they_are() -> None:
    feedback = Feedback.model_validate({**ROW, "value": True})
    assert read_feedback(feedback) == feedback
    example = Example(inputs="q", outputs="a")
    assert read_example(example) == read_example(ROW) == example


@pytest.mark.parametrize("given", ["x", None, 3, ["x"]])
def test_what_is_neither_is_told_in_a_sentence(given: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^feedback: give Feedback, or an object"):
        read_feedback(given)
    with pytest.raises(InvalidInputError, match=r"^example: give an Example, or an object"):
        read_example(given)


@pytest.mark.parametrize("given", ["x", None, 3])
def test_a_memory_says_so_too(given: Any) -> None:
    memory = JudgeMemory(in_memory()(), CRITERION, embeddings=hashed)
    with pytest.raises(InvalidInputError, match=r"^feedback: "):
        memory.remember(given)
    with pytest.raises(InvalidInputError, match=r"^example: "):
        memory.recall(given)
    with pytest.raises(InvalidInputError, match=r"^purge: 'no' is neither True nor False"):
        memory.forget(author="ann", purge="no")  # type: ignore[arg-type]
