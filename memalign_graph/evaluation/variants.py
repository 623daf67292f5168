"""The ways of judging that are compared: with which memory, which options, which model."""

from dataclasses import dataclass, replace
from typing import Any, TypedDict

from langchain_core.language_models import BaseChatModel

from memalign_graph.alignment.batches import DEFAULT_BATCH_SIZE
from memalign_graph.context import DEFAULT_K
from memalign_graph.graphs import create_alignment_graph, create_judge_graph
from memalign_graph.graphs.aligning import Guard
from memalign_graph.judgment import Decide
from memalign_graph.models import DEFAULT_CHAT_MODEL, EmbeddingsLike
from memalign_graph.nodes.remember import LearnFrom
from memalign_graph.prompts.judge import DEFAULT_MAX_GUIDELINE_TOKENS
from memalign_graph.types import Criterion

BASE = "base"
"""The judge without any memory."""

ALIGNED = "aligned"
"""The judge with what it learned."""

VERDICT = "verdict"
"""The same judge taken at its word, where `decide="evidence"` weighs that: no call of its own."""


class JudgingOptions(TypedDict, total=False):
    """The options of the graphs that an evaluation builds, by their names there."""

    model: BaseChatModel | str
    """Who judges: a chat model, or a `"provider:name"` string."""

    distill_model: BaseChatModel | str | None
    """Who distils feedback; the judge itself unless given."""

    embeddings: EmbeddingsLike
    """What finds similar cases: LangChain embeddings, a function, or a string."""

    k: int
    """How many similar examples the judge is shown."""

    use_guidelines: bool
    """False to judge without guidelines, for a judge that is deployed so."""

    use_episodes: bool
    """False to judge without similar examples, likewise."""

    max_guideline_tokens: int
    """How much of the prompt guidelines may take, in tokens."""

    swap: bool
    """True to judge two outputs in both orders."""

    confidence: bool
    """True to measure how sure the judge is, with one more short call."""

    samples: int
    """How many answers to ask for where the model gives no log-probabilities."""

    decide: Decide
    """`verdict`, or `evidence` to weigh the verdict against the most similar cases: the judge is
    then also asked about each case it learns from, and stands beside itself taken at its word."""

    learn_from: LearnFrom
    """`both`, `labels` or `words`: what of the feedback is learned from."""

    guard: Guard | None
    """`replay` to keep no guideline that breaks what worked."""

    batch_size: int
    """How many pieces of feedback one call distils at most."""


@dataclass(frozen=True)
class Variant:
    """One way of judging."""

    name: str
    """Names it in results."""

    model: BaseChatModel | str = DEFAULT_CHAT_MODEL
    """Who judges."""

    distill_model: BaseChatModel | str | None = None
    """Who distils feedback; the judge itself unless given."""

    k: int = DEFAULT_K
    """How many similar examples the judge is shown."""

    use_guidelines: bool = True
    """Whether it is given guidelines."""

    use_episodes: bool = True
    """Whether it is shown episodes."""

    learn_from: LearnFrom = "both"
    """What of the feedback is learned from."""

    max_guideline_tokens: int = DEFAULT_MAX_GUIDELINE_TOKENS
    """How much of the prompt guidelines may take, in tokens."""

    swap: bool = False
    """Whether two outputs are judged in both orders."""

    confidence: bool = False
    """Whether it is measured how sure the judge is."""

    samples: int = 0
    """How many answers that may take where the model gives no log-probabilities."""

    decide: Decide = "verdict"
    """What a judgment's value comes from."""

    guard: Guard | None = None
    """What keeps guidelines from breaking what worked."""

    batch_size: int = DEFAULT_BATCH_SIZE
    """How many pieces of feedback one call distils at most."""

    @property
    def has_memory(self) -> bool:
        """Whether it uses memory at all."""
        return self.use_guidelines or self.use_episodes or self.decide == "evidence"

    def without_memory(self, name: str = BASE) -> "Variant":
        """Return the same judge without memory."""
        return replace(self, name=name, use_guidelines=False, use_episodes=False, decide="verdict")

    def judge_graph(self, criterion: Criterion, model: BaseChatModel, embeddings: Any) -> Any:
        """Build the graph that judges."""
        return create_judge_graph(
            criterion,
            model=model,
            embeddings=embeddings,
            k=self.k,
            use_guidelines=self.use_guidelines,
            use_episodes=self.use_episodes,
            max_guideline_tokens=self.max_guideline_tokens,
            swap=self.swap,
            confidence=self.confidence,
            samples=self.samples,
            decide=self.decide,
        )

    def alignment_graph(
        self,
        criterion: Criterion,
        model: BaseChatModel,
        distill_model: BaseChatModel,
        embeddings: Any,
    ) -> Any:
        """Build the graph that learns."""
        return create_alignment_graph(
            criterion,
            model=model,
            distill_model=distill_model,
            embeddings=embeddings,
            k=self.k,
            learn_from=self.learn_from,
            guard=self.guard,
            batch_size=self.batch_size,
            max_guideline_tokens=self.max_guideline_tokens,
            judge_cases=self._judges_cases,
            **(self._judging if self._judges_cases else {}),
        )

    @property
    def _judges_cases(self) -> bool:
        """Whether the judge is asked about the cases it learns from."""
        return self.decide == "evidence"

    @property
    def _judging(self) -> dict[str, Any]:
        """How it judges, as far as what it said of cases in memory depends on that."""
        return {
            "use_guidelines": self.use_guidelines,
            "use_episodes": self.use_episodes,
            "swap": self.swap,
            "confidence": self.confidence,
            "samples": self.samples,
            "decide": self.decide,
        }

    @property
    def memory_key(self) -> tuple[Any, ...]:
        """What the memory it learns depends on: variants that share it share the memory."""
        # What guards the guidelines, or is weighed, judges with the judge's own model and options.
        judge = id(self.model) if not isinstance(self.model, str) else self.model
        distiller = self.distill_model or self.model
        named = distiller if isinstance(distiller, str) else id(distiller)
        key = (named, self.learn_from, self.batch_size, self.guard)
        if self._judges_cases:
            return (*key, judge, self.k, self.max_guideline_tokens, *self._judging.values())
        return (*key, (judge, self.k) if self.guard else ())
