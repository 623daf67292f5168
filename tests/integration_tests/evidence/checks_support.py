"""What tests of checks share: guidelines that have questions, and a model that answers them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memalign_graph import Criterion, Guideline
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import record_questions
from tests.conftest import CASE, CRITERION, Bench
from tests.loopback import ChatRequest, Reply, answer, with_logprobs

SORRY, BRIEF, DATE = "Does it say sorry?", "Is it brief?", "Does it name a date?"
ALONE = "Answer each question with one word alone, Yes or No."
LETTER = "Answer with the letter of the value alone:"
FIVE = dict.fromkeys("ABCDE", 0.2)


@dataclass
class Model:
    """Answers checks by their questions, values by letters, and else with a verdict."""

    yes: Mapping[str, float] = field(default_factory=dict)
    tells: bool = True
    letters: Mapping[str, float] = field(default_factory=lambda: FIVE)
    value: Any = True

    def __call__(self, chat: ChatRequest) -> Reply:
        last = said_last(chat)
        if chat.schema_name == "answers":
            yes = [self.yes[question] >= 0.5 for question in listed(chat)]
            return answer({str(number): is_yes for number, is_yes in enumerate(yes, 1)})
        if chat.schema_name is not None:
            return answer({"rationale": "Seen.", "value": self.value})
        odds = self.letters
        if is_check(chat):
            share = self.yes[last.splitlines()[-1]]
            odds = {"Yes": share * 0.9, "yes": share * 0.1, "No": 1 - share}
            odds = odds if share >= 0 else {"Perhaps": 0.9, "Yes": 0.05, "No": 0.05}
        first = max(odds, key=lambda token: odds[token])
        return with_logprobs(first, [(first, odds)]) if self.tells else answer(first)


def said_last(chat: ChatRequest) -> str:
    return str(chat.messages[-1]["content"])


def is_check(chat: ChatRequest) -> bool:
    asks_value = said_last(chat).endswith(LETTER)
    return str(chat.messages[0]["content"]).endswith(ALONE) and not asks_value


def listed(chat: ChatRequest) -> list[str]:
    """The questions that are asked at once."""
    lines = said_last(chat).rpartition("</case>")[2].strip().splitlines()[:-1]
    return [line.partition(". ")[2] for line in lines]


def checks_in(bench: Bench) -> list[ChatRequest]:
    return list(filter(is_check, bench.server.chats))


async def rules(
    bench: Bench, questions: Sequence[str], criterion: Criterion = CRITERION
) -> list[Guideline]:
    """Guidelines by hand that have their questions."""
    texts = {f"Rule: {question}": question for question in questions}
    for text in texts:
        await bench.add_guideline(text, criterion=criterion)
    run_sync(record_questions(SYNC, bench.memory(criterion).access, texts))
    return await bench.guidelines(criterion=criterion)


async def judge(bench: Bench, graph_input: Any = CASE, **options: Any) -> Any:
    graph = bench.judge_graph(**{"checks": True, **options})
    bench.server.chats.clear()
    return (await bench.invoke(graph, graph_input))["judgment"]
