"""Random changes compared with a reference model in plain dicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memalign_graph import Feedback
from memalign_graph.io import IO, SYNC, run_sync
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.purge import Selection
from tests.unit_tests.memory.driver import Actor, check_same, memories
from tests.unit_tests.memory.stores import Opener
from tests.unit_tests.memory.support import said

STEPS = 300
KINDS = "remember remember revise forget learn learn learn reword write edit take_away"


@dataclass
class Rule:
    text: str
    sources: set[str] = field(default_factory=set)
    by_hand: bool = False
    pending: bool = False


class Model:
    """A reference model of the operations; guidelines by text."""

    def __init__(self) -> None:
        self.words: dict[str, str | None] = {}
        self.pending: set[str] = set()
        self.rules: list[Rule] = []
        self.reworded = 0

    def remember(self, feedback: Sequence[Feedback]) -> None:
        for key, rationale in {
            feedback.episode_id: feedback.rationale for feedback in feedback
        }.items():
            self.revise(key, {"rationale": rationale})

    def revise(self, key: str, word: dict[str, str | None]) -> None:
        if key not in self.words or self.words[key] != word["rationale"]:
            self.take_back({key})
            self.words[key] = word["rationale"]
            self.pending.add(key)

    def forget(self, selection: Selection) -> None:
        keys = {*(selection.episode_ids or ())} & self.words.keys()
        self.words = {key: feedback for key, feedback in self.words.items() if key not in keys}
        self.take_back(keys)

    def take_back(self, keys: set[str]) -> None:
        self.pending -= keys
        for guideline in [guideline for guideline in self.rules if guideline.sources & keys]:
            guideline.sources -= keys
            guideline.pending = not guideline.by_hand
            if not guideline.sources:
                self.rules.remove(guideline)

    def commit_lesson(self, changes: Sequence[GuidelineOperation], *_: Any, **__: Any) -> None:
        self.pending.clear()
        for change in changes:
            text, target = change.text or "", self.saying(change.guideline_id)
            same = self.saying(text)
            if target is not None:
                assert target.pending
                self.reworded += 1
            if target is not None and same in (None, target):
                target.text, target.pending = text, False
                continue
            if same is None:
                self.rules.append(same := Rule(text))
            if target is not None:
                self.rules.remove(target)
            same.sources |= {*change.episode_ids}

    def add_guideline(self, text: str, **_: Any) -> None:
        if self.saying(text) is None:
            self.rules.append(Rule(text, by_hand=True))

    def edit_guideline(self, before: str, text: str, **_: Any) -> None:
        guideline = self.saying(before)
        assert guideline is not None
        guideline.text, guideline.by_hand, guideline.pending = text, True, False

    def remove_guideline(self, text: str, **_: Any) -> None:
        guideline = self.saying(text)
        assert guideline is not None
        self.rules.remove(guideline)

    def saying(self, text: str | None) -> Rule | None:
        return next((guideline for guideline in self.rules if guideline.text == text), None)


class Trial(Actor):
    """An actor that applies each change to a memory and its model."""

    def __init__(self, opener: Opener, seed: int) -> None:
        self.memories = memories(opener, 2)
        super().__init__(self.memories[0], seed)
        self.opener = opener
        self.model = Model()
        self.words = 0

    def step(self) -> None:
        if self.random.random() < 0.2:
            self.access = self.random.choice(self.memories).access
        run_sync(getattr(self, self.random.choice(KINDS.split()))(SYNC))

    def rationale(self) -> str:
        self.words += 1
        return f"Word {self.words}."

    def feedback(self) -> Feedback:
        author = self.random.choice(("ann", "bob", None))
        new = said(f"case {self.random.randrange(45)}", self.rationale(), author=author)
        stored = self.model.words.get(new.episode_id)
        if stored is None or self.random.random() < 0.7:
            return new
        return new.model_copy(update={"rationale": stored})

    async def do(self, io: IO, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        texts = {guideline.id: guideline.text for guideline in await self.access.guidelines(io)}
        forgotten = sorted(self.model.words)
        result = await super().do(io, function, *args, **kwargs)
        name, arguments = function.__name__, list(args)
        if name in {"edit_guideline", "remove_guideline"}:
            arguments[0] = texts[args[0]]
        elif name == "commit_lesson":
            arguments[0] = [
                change.model_copy(update={"guideline_id": texts.get(change.guideline_id)})
                for change in args[0]
            ]
        elif name == "revise":
            assert (result.id, result.rationale) == (args[0], args[1]["rationale"])
        getattr(self.model, name)(*arguments, **kwargs)
        if name == "forget":
            remaining = set(forgotten) - self.model.words.keys()
            assert (set(result.episode_ids), result.unknown_ids) == (remaining, ["no such"])
        return result

    def compare(self) -> None:
        """Check that warm and cold readers match the model."""
        [cold] = memories(self.opener, 1)
        check_same(self.memories, cold)
        for memory in (*self.memories, cold):
            assert set(memory.access.view.pending()) == self.model.pending
        assert {episode.id: episode.rationale for episode in cold.episodes()} == self.model.words
        guidelines = {
            guideline.text: (guideline.status == "pending", {*guideline.episode_ids})
            for guideline in cold.guidelines()
        }
        assert guidelines == {
            guideline.text: (guideline.pending, guideline.sources) for guideline in self.model.rules
        }
        assert len(cold.guidelines()) == len(self.model.rules)


def test_random_changes_match_the_reference_model(any_opener: Opener) -> None:
    trial = Trial(any_opener, seed=20)
    for _ in range(STEPS):
        trial.step()
        if trial.random.random() < 0.1:
            trial.compare()
    trial.compare()
    assert len(trial.model.words) > 10
    assert len(trial.model.rules) > 3
    assert trial.model.reworded > 5
