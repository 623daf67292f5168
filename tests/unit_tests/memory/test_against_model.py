"""Hundreds of random changes against a model in plain dicts; readers that look now and then."""

import random
from dataclasses import dataclass, field
from typing import Any

from memalign_graph import Feedback, JudgeMemory
from tests.unit_tests.memory.support import CRITERION, QUERY, Opener, hashed, learn, op, said

STEPS = 300


@dataclass
class Model:
    """What a memory should hold."""

    words: dict[str, str | None] = field(default_factory=dict)
    """Rationales by episode id."""
    pending: set[str] = field(default_factory=set)
    sources: dict[str, set[str]] = field(default_factory=dict)
    """Episode ids by guideline text."""

    def remember(self, feedback: Feedback) -> None:
        key = feedback.episode_id
        if key in self.words and self.words[key] != feedback.rationale:
            self.take_back({key})
        if self.words.get(key) != feedback.rationale:
            self.words[key] = feedback.rationale
            self.pending.add(key)

    def forget(self, keys: set[str]) -> None:
        for key in keys:
            self.words.pop(key, None)
        self.take_back(keys)
        self.pending -= keys

    def take_back(self, keys: set[str]) -> None:
        touched = [text for text, ids in self.sources.items() if ids & keys]
        for text in touched:
            self.sources[text] -= keys
            self.pending |= self.sources[text]
            if not self.sources[text]:
                del self.sources[text]


class Trial:
    """A memory and its model, changed alike."""

    def __init__(self, opener: Opener, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a test's choices
        self.opener = opener
        self.model = Model()
        self.edits = 0
        self.memories = [self.open(), self.open()]
        self.memory = self.memories[0]

    def open(self) -> JudgeMemory:
        return JudgeMemory(self.opener(), CRITERION, embeddings=hashed)

    def step(self) -> None:
        kinds = ("remember", "remember", "forget", "learn", "learn", "add", "edit", "remove")
        if self.random.random() < 0.2:
            self.memory = self.random.choice(self.memories)
        getattr(self, self.random.choice(kinds))()

    def remember(self) -> None:
        given = said(
            f"case {self.random.randrange(15)} of {self.random.randrange(3)}",
            f"Word {self.random.randrange(3)}.",
            author=self.random.choice(("ann", "bob", None)),
        )
        self.memory.remember(given)
        self.model.remember(given)

    def forget(self) -> None:
        keys = self.some(self.model.words, 2)
        done = self.memory.forget([*keys, "no such"])
        assert (set(done.episode_ids), done.unknown_ids) == (keys, ["no such"])
        self.model.forget(keys)

    def learn(self) -> None:
        keys = self.some(self.model.words, 3)
        text = f"Lesson {self.random.randrange(12)}."
        learn(self.memory, *([op("add", *sorted(keys), text=text)] if keys else []))
        if keys:
            self.model.sources.setdefault(text, set()).update(keys)
        self.model.pending.clear()

    def add(self) -> None:
        text = f"By hand {self.random.randrange(6)}."
        self.memory.add_guideline(text)
        self.model.sources.setdefault(text, set())

    def edit(self) -> None:
        for text in self.some(self.model.sources, 1):
            self.edits += 1
            after = f"Edit {self.edits}."
            self.memory.edit_guideline(self.id_of(text), after)
            self.model.sources[after] = self.model.sources.pop(text)

    def remove(self) -> None:
        for text in self.some(self.model.sources, 1):
            self.memory.remove_guideline(self.id_of(text))
            del self.model.sources[text]

    def id_of(self, text: str) -> str:
        [found] = [rule.id for rule in self.memory.guidelines() if rule.text == text]
        return found

    def some(self, among: dict[str, Any], most: int) -> set[str]:
        count = min(self.random.randint(0, most), len(among))
        return set(self.random.sample(sorted(among), count))

    def check(self) -> None:
        """All readers, warm and cold, see what the model says."""
        cold = self.open()
        for memory in (*self.memories, cold):
            found = memory.recall(QUERY, k=100)
            words = {one.id: one.rationale for group in found for one in group.episodes}
            assert words == self.model.words
            assert memory.version() == cold.version()
            assert set(memory.access.view.pending()) == self.model.pending
        assert {one.id: one.rationale for one in cold.episodes()} == self.model.words
        rules = {rule.text: set(rule.episode_ids) for rule in cold.guidelines()}
        assert rules == self.model.sources


def test_random_changes_do_what_the_model_says(any_opener: Opener) -> None:
    trial = Trial(any_opener, seed=20)
    for _ in range(STEPS):
        trial.step()
        if trial.random.random() < 0.1:
            trial.check()
    trial.check()
    assert len(trial.model.words) > 10
    assert len(trial.model.sources) > 3
