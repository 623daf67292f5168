"""How often `review="uncertain"` asks, and how right what it does not ask about is.

`python -m benchmarks.evidence.asking --data DIR` lets a judge without memory in its prompt judge
labelled rows one after the other; whenever an expert is asked, the human's label is the answer.
What is not asked about is compared with its label, which the memory never sees.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from benchmarks.agreement.ours import criterion_of, example_of
from benchmarks.agreement.rows import Row
from benchmarks.evidence.__main__ import chat_model
from memalign_graph import JudgeMemory, Uncertain, create_review_graph
from memalign_graph.agreement import agree
from memalign_graph.errors import ModelAnswerError
from memalign_graph.evidence.trust import interval
from memalign_graph.local import LocalEmbeddings
from memalign_graph.scales import Boolean


def stream(rows: list[Row], model: BaseChatModel, target: float) -> dict[str, int]:
    """Judge rows in their order, asking where the judge is not sure.

    Args:
        rows: The rows.
        model: The chat model.
        target: How often what is not asked about is to agree.

    Returns:
        How many were `judged`, `asked` about, and of the others how many there are (`unasked`) and
        `agree`.
    """
    criterion = criterion_of(rows[0])
    store, embeddings = InMemoryStore(), LocalEmbeddings()
    graph = create_review_graph(
        criterion,
        model=model,
        embeddings=embeddings,
        use_guidelines=False,
        use_episodes=False,
        confidence=isinstance(criterion.scale, Boolean),
        decide="evidence",
        review=Uncertain(target_agreement=target),
    ).compile(store=store, checkpointer=InMemorySaver())
    memory = JudgeMemory(store, criterion, embeddings=embeddings)
    counts = {"judged": 0, "asked": 0, "unasked": 0, "agree": 0}
    for number, row in enumerate(rows):
        config: Any = {"configurable": {"thread_id": str(number)}}
        try:
            result = graph.invoke(example_of(row), config)
        except ModelAnswerError:
            continue
        judgment = result["judgment"]
        label = criterion.scale.validate_value(row["label"])
        counts["judged"] += 1
        if "__interrupt__" in result:
            counts["asked"] += 1
            # The thread is left where it is: distilling is not what is measured.
            memory.remember({**example_of(row), "value": label, "judgment": judgment})
        else:
            counts["unasked"] += 1
            counts["agree"] += agree(criterion.scale, judgment["value"], label)
    return counts


def main() -> None:
    """Stream the rows in several orders, and print what came of it."""
    options = _options()
    model = chat_model(options)
    print("| criterion | target | order | judged | asked | not asked | of these agree | 95 % |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.sets:
        with (options.data / f"{name}.jsonl").open(encoding="utf-8") as lines:
            every = [json.loads(line) for line in lines]
        test = [row for row in every if row["split"] == "test"]
        random.Random(0).shuffle(test)  # noqa: S311 - the rows that the other tables judge
        kept = test[: options.test]
        if options.train:
            kept += [row for row in every if row["split"] == "train"]
        for target in options.targets:
            for order in range(options.orders):
                rows = list(kept)
                random.Random(order).shuffle(rows)  # noqa: S311 - nothing secret
                found = stream(rows, model, target)
                low, high = interval(found["agree"], found["unasked"])
                share = f"{found['agree'] / found['unasked']:.2f}" if found["unasked"] else "none"
                print(
                    f"| {name} | {target} | {order} | {found['judged']} | {found['asked']} | "
                    f"{found['unasked']} | {share} | {low:.2f} to {high:.2f} |",
                    flush=True,
                )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence.asking", description=main.__doc__
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the folder of labelled rows, a file a criterion")
    add("--sets", type=_words, default=("dices_crowd_safety",), help="criteria, commas between")
    add("--test", type=int, default=40, help="how many test rows are judged")
    add("--train", action="store_true", help="judge the training rows, too")
    add("--targets", type=_numbers, default=(0.9, 0.8), help="agreements asked for")
    add("--orders", type=int, default=3, help="in how many orders the rows come")
    add("--base-url", help="an OpenAI-compatible server; the embedded model unless given")
    add("--model", default="qwen2.5-coder-1.5b-instruct", help="the chat model's name there")
    return parser.parse_args()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


if __name__ == "__main__":
    main()
