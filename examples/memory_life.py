"""History, rollback, purge, export and import of a memory."""

import tempfile
from pathlib import Path

from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Feedback, JudgeMemory, create_alignment_graph
from memalign_graph.local import open_local_store
from memalign_graph.models import models_from_environment

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)


def expert_feedback(inputs: str, comment: str, author: str) -> Feedback:
    """Return an expert's feedback."""
    return Feedback.model_validate(
        {"inputs": inputs, "outputs": "We know.", "rationale": comment, "author": author}
    )


def main(folder: Path) -> None:
    """Teach, look back, go back, forget, purge, and move the memory elsewhere."""
    model, embeddings = models_from_environment()
    graph = create_alignment_graph(CRITERION, model=model, embeddings=embeddings)
    with open_local_store(folder / "memory.sqlite") as store:
        memory = JudgeMemory(store, CRITERION, embeddings=embeddings, model=model)
        feedback = [
            expert_feedback("My order never came.", "It must say sorry first.", "ann"),
            expert_feedback(
                "Call me, Jo Doe, 555-0199.", "It repeats the customer's number.", "bob"
            ),
        ]
        graph.compile(store=store).invoke({"feedback": feedback})
        learned = memory.version()
        print("commits:", [commit.reason for commit in memory.history()])

        memory.forget(author="ann")
        change = memory.diff(learned)
        print(f"forgotten: {len(change.episodes.removed)} episode(s)")
        memory.rollback(learned)
        print("rolled back, the same version:", memory.version() == learned)

        erased = memory.forget(author="bob", purge=True, by="the privacy officer")
        print("purged:", len(erased.episode_ids), "episode(s)")
        left = memory.rollback(learned)
        print("rolled back again; not restored, since purged:", len(left.missing), "item(s)")
        in_file = b"555-0199" in (folder / "memory.sqlite").read_bytes()
        print("still in the file:", in_file)

        text = memory.export_jsonl(folder / "memory.jsonl")
        other = JudgeMemory(InMemoryStore(), CRITERION, embeddings=embeddings)
        other.import_jsonl(folder / "memory.jsonl")
        print("moved, the same:", other.export_jsonl() == text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder_name:
        main(Path(folder_name))
