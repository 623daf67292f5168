"""The ways of judging that are compared: with which memory, which options, which model."""

from typing import Any, Unpack

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel

from memalign_graph.graphs import Graph, create_alignment_graph, create_judge_graph
from memalign_graph.settings import Alignment, JudgeOptions

BASE = "base"
"""The judge without any memory."""

ALIGNED = "aligned"
"""The judge with what it learned."""

VERDICT = "verdict"
"""The same judge taken at its word, where `decide="evidence"` weighs that: no call of its own."""


class Variant(Alignment):
    """One way of judging: a judge, and how it learns."""

    name: str
    """Names it in results."""

    @property
    def has_memory(self) -> bool:
        """Whether it uses memory at all."""
        judge = self.judge
        return judge.use_guidelines or judge.use_episodes or judge.decide == "evidence"

    def but(self, name: str, **judge: Unpack[JudgeOptions]) -> "Variant":
        """Return another way of judging, with other options of the judge."""
        return self.model_copy(update={"name": name, "judge": self.judge.but(**judge)})

    def without_memory(self, name: str = BASE) -> "Variant":
        """Return the same judge without memory."""
        return self.but(name, use_guidelines=False, use_episodes=False, decide="verdict")

    def judge_graph(self, model: BaseChatModel, embeddings: Embeddings) -> Graph:
        """Build the graph that judges."""
        judge = self.judge.but(model=model, embeddings=embeddings, keep_judgments=None)
        return create_judge_graph(judge.criterion, **judge.options)

    def alignment_graph(
        self, model: BaseChatModel, distill_model: BaseChatModel, embeddings: Embeddings
    ) -> Graph:
        """Build the graph that learns; its guard judges as the judge does."""
        judge = self.judge.but(model=model, distill_model=distill_model, embeddings=embeddings)
        return create_alignment_graph(
            judge.criterion,
            learn_from=self.learn_from,
            guard=self.guard,
            batch_size=self.batch_size,
            judge_cases=self._judges_cases,
            **judge.options,
        )

    @property
    def _judges_cases(self) -> bool:
        """Whether the judge is asked about the cases it learns from."""
        return self.judge.decide == "evidence"

    @property
    def memory_key(self) -> tuple[Any, ...]:
        """What the memory it learns depends on: variants that share it share the memory."""
        judge = self.judge
        key = (_name(judge.distill_model or judge.model), self.learn_from, self.batch_size)
        if self.guard is None and not self._judges_cases:
            return key
        # What guards the guidelines, or is weighed, is what the judge says, with all its options.
        judging = {**judge.options, "model": _name(judge.model), "distill_model": None}
        del judging["embeddings"]  # one for all ways of an evaluation
        return (*key, self.guard, *judging.items())


def _name(model: BaseChatModel | str) -> str | int:
    return model if isinstance(model, str) else id(model)
