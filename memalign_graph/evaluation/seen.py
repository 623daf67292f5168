"""What flips and credit share: a memory copied to be tried on, and its judge."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from langgraph.store.memory import InMemoryStore

from memalign_graph.alignment.cases import Case, cases_of
from memalign_graph.errors import InvalidInputError, ModelAnswerError
from memalign_graph.evaluation.lab import Lab
from memalign_graph.evaluation.variants import Variant
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.memory.portable import export_jsonl, import_jsonl
from memalign_graph.nodes.judge import judge_again, value_judge
from memalign_graph.runtime import Parts, Run, Step
from memalign_graph.types import Example, Guideline, Judgment


@dataclass(frozen=True)
class SeenLab:
    """A memory's judge, on cases that the memory holds."""

    lab: Lab
    """Counts what is done."""

    access: MemoryAccess
    """A copy of the memory: what is tried on it leaves the memory as it is."""

    parts: Parts
    """The judge, and its clients."""

    guidelines: list[Guideline]
    """The guidelines that stand."""

    cases: list[Case]
    """The cases that experts gave a value, oldest first."""

    async def verdict(
        self,
        io: IO,
        example: Example,
        guidelines: Sequence[Guideline],
        besides: AbstractSet[str] = frozenset(),
    ) -> Judgment | None:
        """Judge a case."""
        try:
            step = Step(io, self.parts, Run(self.access.store), self.parts.defaults, self.access)
            return await judge_again(step, example, guidelines=guidelines, besides=besides)
        except ModelAnswerError:
            return None


async def open_seen(
    io: IO, lab: Lab, memory: JudgeMemory, variant: Variant, purpose: str
) -> SeenLab:
    """Copy a memory, with its vectors, and set up its judge."""
    lines = await export_jsonl(io, memory.access)
    copied = MemoryAccess(
        store=InMemoryStore(),
        criterion=memory.criterion,
        layout=memory.access.layout,
        embedder=memory.access.embedder,
    )
    await import_jsonl(io, copied, lines.split("\n"))
    view = await copied.refresh(io)
    await index_missing(io, copied, view)
    episodes = await copied.all_episodes(io)
    judge = value_judge(variant.judge).but(model=lab.model(variant.judge.model, purpose))
    return SeenLab(
        lab=lab,
        access=copied,
        parts=Parts(judge),
        guidelines=await copied.guidelines(io),
        cases=cases_of(episodes, memory.criterion.scale),
    )


def check_memory(memory: object) -> None:
    """Check that a memory was given."""
    if not isinstance(memory, JudgeMemory):
        raise InvalidInputError(
            "memory: give a JudgeMemory(store, criterion, ...), not a value of type "
            f"{type(memory).__name__}."
        )
