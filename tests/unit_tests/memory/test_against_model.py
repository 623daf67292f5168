"""Hundreds of random changes against a model in plain dicts; readers that look now and then."""

import random
from dataclasses import dataclass, field
from typing import Any

from memalign_graph import Feedback, JudgeMemory
from tests.unit_tests.memory.stores import Opener
from tests.unit_tests.memory.support import CRITERION, QUERY, hashed, learn, op, said

STEPS = 300


@dataclass
class Rule:
    text: str
    sources: set[str] = field(default_factory=set)
    by_hand: bool = False
    pending: bool = False


@dataclass
class Model:
    words: dict[str, str | None] = field(default_factory=dict)
    """Rationales by episode id."""
    pending: set[str] = field(default_factory=set)
    rules: list[Rule] = field(default_factory=list)

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
        for rule in [one for one in self.rules if one.sources & keys]:
            rule.sources -= keys
            rule.pending = not rule.by_hand
            if not rule.sources:
                self.rules.remove(rule)

    def learn(self, text: str, keys: set[str], target: Rule | None = None) -> None:
        self.pending.clear()
        same = self.saying(text)
        if target is not None and same in (None, target):
            target.text, target.pending = text, False
            return
        if same is None:
            self.rules.append(same := Rule(text))
        if target is not None:
            self.rules.remove(target)
        same.sources |= keys

    def saying(self, text: str) -> Rule | None:
        return next((one for one in self.rules if one.text == text), None)

    @property
    def texts(self) -> list[str]:
        return sorted(one.text for one in self.rules)


class Trial:
    """A memory and its model, changed alike."""

    def __init__(self, opener: Opener, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a test's choices
        self.opener = opener
        self.model = Model()
        self.edits = self.words = 0
        self.reworded = 0
        self.memories = [self.open(), self.open()]
        self.memory = self.memories[0]

    def open(self) -> JudgeMemory:
        return JudgeMemory(self.opener(), CRITERION, embeddings=hashed)

    def step(self) -> None:
        kinds = "remember remember revise forget learn learn learn reword add edit remove"
        if self.random.random() < 0.2:
            self.memory = self.random.choice(self.memories)
        getattr(self, self.random.choice(kinds.split()))()

    def remember(self) -> None:
        case = f"case {self.random.randrange(15)} of {self.random.randrange(3)}"
        given = said(case, self.word(), author=self.random.choice(("ann", "bob", None)))
        if self.random.random() < 0.3:  # the same again
            again = self.model.words.get(given.episode_id)
            given = given.model_copy(update={"rationale": again or given.rationale})
        self.memory.remember(given)
        self.model.remember(given)

    def word(self) -> str:
        self.words += 1
        return f"Word {self.words}."

    def revise(self) -> None:
        for key in self.some(self.model.words, 1):
            word = self.random.choice((self.word(), self.model.words[key]))
            after = self.memory.revise(key, {"rationale": word})
            assert (after.id, after.rationale) == (key, word)
            if self.model.words[key] != word:
                self.model.forget({key})
                self.model.words[key] = word
                self.model.pending.add(key)

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
            self.model.learn(text, keys)
        self.model.pending.clear()

    def reword(self) -> None:
        """Give a pending guideline words again, as distilling it from its sources does."""
        everything = self.memory.guidelines()
        for rule in [one for one in everything if one.status == "pending"][:1]:
            self.reworded += 1
            text = f"Lesson {self.random.randrange(12)}."
            sources = sorted(rule.episode_ids)
            learn(self.memory, op("revise", *sources, guideline_id=rule.id, text=text))
            target = self.model.saying(rule.text)
            assert target is not None
            assert target.pending
            self.model.learn(text, set(sources), target)

    def add(self) -> None:
        text = f"By hand {self.random.randrange(6)}."
        self.memory.add_guideline(text)
        if self.model.saying(text) is None:
            self.model.rules.append(Rule(text, by_hand=True))

    def edit(self) -> None:
        for text in self.some(self.model.texts, 1):
            self.edits += 1
            after = f"Edit {self.edits}."
            self.memory.edit_guideline(self.id_of(text), after)
            rule = self.model.saying(text)
            assert rule is not None
            rule.text, rule.by_hand, rule.pending = after, True, False

    def remove(self) -> None:
        for text in self.some(self.model.texts, 1):
            self.memory.remove_guideline(self.id_of(text))
            rule = self.model.saying(text)
            assert rule is not None
            self.model.rules.remove(rule)

    def id_of(self, text: str) -> str:
        [found] = [rule.id for rule in self.memory.guidelines() if rule.text == text]
        return found

    def some(self, among: Any, most: int) -> set[str]:
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
        rules = {
            (rule.text, rule.status == "pending"): set(rule.episode_ids)
            for rule in cold.guidelines()
        }
        assert rules == {(one.text, one.pending): one.sources for one in self.model.rules}
        assert len(rules) == len(self.model.rules)


def test_random_changes_do_what_the_model_says(any_opener: Opener) -> None:
    trial = Trial(any_opener, seed=20)
    for _ in range(STEPS):
        trial.step()
        if trial.random.random() < 0.1:
            trial.check()
    trial.check()
    assert len(trial.model.words) > 10
    assert len(trial.model.texts) > 3
    assert trial.reworded > 5
