"""`memalign memory forget`: effects and confirmation."""

import io
import sqlite3
import sys
from contextlib import closing

import pytest

from memalign_graph.local import open_local_checkpointer, open_local_store
from tests.integration_tests.cli.support import ANN, Shell


def test_forgetting_removes_the_guideline_and_can_be_rolled_back(shell: Shell) -> None:
    shell.align(ANN)
    before = shell.opened()
    document = shell.memory("forget", before[1][0].id[:8], "--yes", "--json").document
    assert document["episode_ids"] == [before[1][0].id]
    assert [guideline["id"] for guideline in document["guidelines_removed"]] == [before[0][0].id]
    assert document["version"] == shell.opened()[2]
    assert shell.opened()[:2] == ([], [])
    assert shell.memory("rollback", before[2][:8]).status == 0
    assert shell.opened() == before


def test_removing_a_guideline_keeps_its_feedback(shell: Shell) -> None:
    shell.align(ANN)
    ids = shell.ids()
    error = shell.memory("forget", ids["guideline"][:6], "--purge", "--yes").refusal
    assert "is a guideline" in error
    ran = shell.memory("forget", ids["guideline"][:6], "--yes")
    assert (ran.status, "guidelines_removed: 1" in ran.out) == (0, True)
    assert shell.opened()[0] == []
    assert len(shell.opened()[1]) == 1


def test_purge_leaves_nothing_in_the_file(shell: Shell) -> None:
    comment = "Sesquipedalian"
    shell.align({**ANN, "rationale": f"Too cold: {comment}."})
    version, [episode] = shell.opened()[2], shell.opened()[1]
    assert shell.memory("forget", episode.id, "--yes").status == 0
    assert comment.encode() in (shell.folder / "memalign.db").read_bytes()
    # By its full id, also in capitals, what was forgotten before is purged.
    ran = shell.memory("forget", f" {episode.id.upper()} ", "--purge", "--yes")
    assert ran.status == 0
    files = shell.folder.glob("memalign.db*")
    assert comment.encode() not in b"".join(path.read_bytes() for path in files)
    assert "cannot be restored: purged since" in shell.memory("rollback", version).err
    assert shell.opened()[1] == []


def test_purge_erases_threads_in_the_same_file(shell: Shell) -> None:
    name = "memalign.db"
    with open_local_store(name) as store, open_local_checkpointer(name) as checkpointer:
        shell.review_on_a_thread(store, checkpointer)
    count = "SELECT count(*) FROM checkpoints"
    with closing(sqlite3.connect(name)) as connection:
        assert connection.execute(count).fetchone()[0] > 0
    output = shell.memory("forget", "--author", "ann", "--purge", "--yes", "--json")
    assert output.status == 0
    assert output.document["purged"]["thread_ids"] == ["t-1"]
    with closing(sqlite3.connect(name)) as connection:
        assert connection.execute(count).fetchone()[0] == 0


@pytest.mark.parametrize("arguments", [["0" * 32], ["--author", "carol"]])
def test_purge_that_erases_nothing_exits_with_an_error(shell: Shell, arguments: list[str]) -> None:
    shell.align(ANN)
    ran = shell.memory("forget", *arguments, "--purge", "--yes")
    name = " ".join(arguments)
    assert ran.status == 4
    assert f"{name}: there was no such feedback to erase. Check the name or id." in ran.err
    assert len(shell.opened()[1]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "ID: give the ids to forget"),
        (["--author", "carol"], "ID: no feedback in the memory matches"),
        (["--author", ""], "ID: give the ids to forget"),
        (["zzzz"], "ID: 'zzzz' names no guidelines or episodes"),
    ],
)
def test_unusable_arguments(shell: Shell, arguments: list[str], says: str) -> None:
    shell.align(ANN)
    assert shell.memory("forget", *arguments, "--yes").refusal.startswith(says)
    error = shell.memory("forget", "--author", "ann").refusal
    assert error == "--yes: there is no terminal to ask at. Add --yes."
    assert shell.memory("forget", shell.ids()["ann"], "--author", "bob", "--yes").status == 2
    assert len(shell.opened()[1]) == 1


class Typed(io.StringIO):
    """What an operator types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "status"), [("y\n", 0), ("n\n", 2), ("", 2)])
def test_confirmation_at_a_terminal(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, typed: str, status: int
) -> None:
    shell.align(ANN)
    monkeypatch.setattr("sys.stdin", Typed(typed))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ran = shell.memory("forget", "--author", "ann")
    assert (ran.status, "Forget 1 episode? [y/N]" in ran.err) == (status, True)
    assert len(shell.opened()[1]) == (1 if status else 0)
