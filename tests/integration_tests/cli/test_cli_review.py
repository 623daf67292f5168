"""`memalign review`: an expert at a shell answers for the judgments that wait."""

import io

import pytest

from tests.integration_tests.cli.support import ANN, BOB, Ran, Shell
from tests.loopback import error

CASES = [{name: one[name] for name in ("inputs", "outputs")} for one in (ANN, BOB)]


@pytest.fixture
def waiting(shell: Shell) -> Shell:
    """Two judgments, both true, that wait for a word."""
    shell.settings(judge={"keep_judgments": 30})
    assert shell.judge(*CASES).status == 0
    return shell


def review(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, *lines: str, options: tuple[str, ...] = ()
) -> Ran:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return shell.run("review", "-c", "tone.yaml", "--author", "ann", *options)


def test_values_and_words_are_learned(waiting: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = review(waiting, monkeypatch, "no", "Too cold: say sorry.", "true", "")
    assert ran.status == 0
    assert "waiting 0 version " in " ".join(ran.out.split())
    for text in ("1 of 2", ANN["inputs"], BOB["outputs"], "learned: add: ", "heed the expert"):
        assert text in ran.err
    [guideline], episodes, _ = waiting.opened()
    assert "Too cold: say sorry." in guideline.text
    assert {(one.author, one.value, one.rationale) for one in episodes} == {
        ("ann", False, "Too cold: say sorry."),
        ("ann", True, None),
    }
    assert review(waiting, monkeypatch, options=("--json",)).document["waiting"] == 0


def test_words_alone_skip_undo_and_quit(waiting: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["u", "", "Too cold.", "undo", "perhaps", "s", "q"]
    ran = review(waiting, monkeypatch, *lines, options=("--json",))
    assert ran.status == 0
    assert (ran.document["episode_ids"], ran.document["waiting"]) == ([], 2)
    assert "taken back" in ran.err
    assert "'perhaps' is not on the scale" in ran.err
    assert waiting.opened()[:2] == ([], [])
    lines = ["", "", "", "Too cold."]  # nothing said is skipped, and the end of input is a quit
    ran = review(waiting, monkeypatch, *lines, options=("--json",))
    assert ran.document["waiting"] == 1
    assert [one.value for one in waiting.opened()[1]] == [None]


def test_undo_takes_nobody_elses_words_back(
    waiting: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [{**BOB, "inputs": f"case {n}", "value": None} for n in range(6)]
    waiting.server.responder = lambda _: error(401, "The key is wrong.")
    assert waiting.align(*others).status == 3  # they wait to be distilled, and are along with next
    waiting.server.responder = waiting.server.judge
    assert "taken back" in review(waiting, monkeypatch, "", "Too cold.", "undo", "q").err
    assert [one.author for one in waiting.opened()[1]] == ["bob"] * 6


def test_undo_takes_back_the_last_word_and_an_earlier_one_counts_again(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.settings(judge={"keep_judgments": 30})
    assert shell.judge(CASES[0], CASES[0]).status == 0  # the same case, judged twice
    before = ["no", "Too cold: say sorry.", "q"]
    assert review(shell, monkeypatch, *before).status == 0
    learned = shell.opened()
    assert shell.judge(CASES[0]).status == 0
    lines = ["yes", "It is fine after all.", "undo", "q"]
    ran = review(shell, monkeypatch, *lines)
    assert "taken back" in ran.err, ran.err
    [episode], guidelines = shell.opened()[1], shell.opened()[0]
    assert (episode.value, episode.rationale) == (False, "Too cold: say sorry.")
    assert episode.status == "distilled"
    assert [one.text for one in guidelines] == [one.text for one in learned[0]]
