# ruff: noqa: RUF001 - lessons are written in their own scripts
"""Informative guidelines and repetitions in six languages."""

import unicodedata

import pytest

from memalign_graph import Criterion
from memalign_graph.prompts.distill import DistillPrompt
from memalign_graph.prompts.distilled import read_distilled
from memalign_graph.prompts.fences import adds_information
from tests.conftest import operations
from tests.unit_tests.prompts.support import episode, guideline, prompt
from tests.unit_tests.prompts.test_distill_prompt import add, revise

LANGUAGES: dict[str, tuple[str, list[str], list[str]]] = {
    "korean": (
        "답변은 고객에게 적절한가?",
        ["사과 먼저 할 것", "답변은 먼저 사과 해야 한다", "환불 금지", "답변은 3줄 이하"],
        ["답변은 고객에게 적절해야 한다", "답변이 고객에게 적절하지 않으면 값은 false"],
    ),
    "chinese": (
        "回复对客户是否合适？",
        ["道歉", "先道歉", "回复必须先道歉", "不得承诺退款"],
        ["回复对客户是否合适。", "回复必须对客户合适", "如果回复对客户不合适，值为 false"],
    ),
    "thai": (
        "คำตอบเหมาะสมกับลูกค้าหรือไม่",
        ["ขอโทษ", "ขอโทษก่อน", "คำตอบต้องขอโทษก่อน"],
        ["คำตอบต้องเหมาะสมกับลูกค้า", "ถ้าคำตอบไม่เหมาะสมกับลูกค้า ค่าเป็น false"],
    ),
    "arabic": (
        "هل الرد مناسب للعميل؟",
        ["اعتذر", "اعتذر أولا", "يجب أن يعتذر الرد أولا للعميل"],
        ["يجب أن يكون الرد مناسب للعميل", "إذا كان الرد ليس مناسب للعميل القيمة false"],
    ),
    "english": (
        "Is the answer fit for it?",
        ["No SQL.", "Say so.", "If it is 3, the value is false.", "It is fit if it is in C."],
        ["If the answer is not fit for it, the value is false."],
    ),
}


def of_language(name: str, outputs: str) -> DistillPrompt:
    instructions, lessons, _ = LANGUAGES[name]
    return prompt(
        episode(outputs, rationale=lessons[0]),
        guidelines=[guideline("a", lessons[1])],
        criterion=Criterion(name="tone", instructions=instructions),
        max_operations=9,
    )


@pytest.mark.parametrize("name", LANGUAGES)
def test_guidelines_are_kept_and_repetitions_refused_in_any_language(name: str) -> None:
    _, lessons, parrots = LANGUAGES[name]
    built_prompt = of_language(name, "...")
    answer = operations(*map(add, [*lessons, *parrots]))
    read = read_distilled(answer, built_prompt, drop_rejected=True)
    assert [operation.text for operation in read.operations] == lessons
    assert read.warnings == [
        f'The model\'s guideline "{parrot}" was not kept, since it says no more than the criterion.'
        for parrot in parrots
    ]
    built_prompt = of_language(name, f" {lessons[0].upper()}。")
    answer = operations(add(lessons[0]), revise(lessons[1]))
    first, second = read_distilled(answer, built_prompt, drop_rejected=True).warnings
    assert "it repeats a case that was judged" in first
    assert "it gives a guideline the words it has" in second


def test_unicode_normalization_forms_are_equal_words() -> None:
    built_prompt = prompt(guidelines=[guideline("a", "사과 먼저"), guideline("b", "ＳＱＬ。")])
    decomposed = unicodedata.normalize("NFD", "사과 먼저")
    assert decomposed != "사과 먼저"
    second = {**revise("sql"), "guideline": "G2"}
    answer = operations(revise(decomposed), second)
    assert read_distilled(answer, built_prompt, drop_rejected=True).operations == []


def test_korean_word_is_recognized_with_any_suffix() -> None:
    assert not adds_information("답변이 적절하다", "답변은 적절한가?")
    assert adds_information("답변이 친절하다", "답변은 적절한가?")
