"""What flips and credit share: a memory copied to be tried on, and its judge."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from langgraph.store.memory import InMemoryStore

from memalign_graph.alignment.cases import Case, cases_of
from memalign_graph.alignment.seen import SeenJudge, SeenVerdict, judge_seen
from memalign_graph.effects import Operation
from memalign_graph.errors import InvalidInputError, ModelAnswerError
from memalign_graph.evaluation.lab import Lab
from memalign_graph.evaluation.variants import Variant
from memalign_graph.memory import JudgeMemory
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.portable import export_jsonl, import_jsonl
from memalign_graph.types import Example, Guideline


@dataclass(frozen=True)
class SeenLab:
    """A memory's judge, on cases that the memory holds."""

    lab: Lab
    """Counts what is done."""

    access: MemoryAccess
    """A copy of the memory: what is tried on it leaves the memory as it is."""

    judge: SeenJudge
    """How it judges."""

    guidelines: list[Guideline]
    """The guidelines that stand."""

    cases: list[Case]
    """The cases that experts gave a value, oldest first."""

    def verdict(
        self,
        example: Example,
        guidelines: Sequence[Guideline],
        besides: AbstractSet[str] = frozenset(),
    ) -> Operation[SeenVerdict | None]:
        """Judge a case."""
        try:
            return (yield from judge_seen(self.access, self.judge, example, guidelines, besides))
        except ModelAnswerError:
            return None


def open_seen(lab: Lab, memory: JudgeMemory, variant: Variant, purpose: str) -> Operation[SeenLab]:
    """Copy a memory, with its vectors, and set up its judge."""
    lines = yield from export_jsonl(memory.access)
    copied = MemoryAccess(
        store=InMemoryStore(),
        criterion=memory.criterion,
        layout=memory.access.layout,
        embedder=memory.access.embedder,
    )
    yield from import_jsonl(copied, lines.split("\n"))
    view = yield from copied.refresh()
    yield from index_missing(copied, view)
    episodes = yield from copied.all_episodes()
    return SeenLab(
        lab=lab,
        access=copied,
        judge=SeenJudge(
            chat=lab.model(variant.model, purpose),
            k=variant.k if variant.use_episodes else 0,
            use_guidelines=variant.use_guidelines,
            max_guideline_tokens=variant.max_guideline_tokens,
            swap=variant.swap,
            decide=variant.decide,
            confidence=variant.confidence,
            samples=variant.samples,
        ),
        guidelines=(yield from copied.all_guidelines()),
        cases=cases_of(episodes, memory.criterion.scale),
    )


def check_memory(memory: object) -> None:
    """Check that a memory was given."""
    if not isinstance(memory, JudgeMemory):
        raise InvalidInputError(
            "memory: give a JudgeMemory(store, criterion, ...), not a value of type "
            f"{type(memory).__name__}."
        )
