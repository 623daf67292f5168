"""`memalign memory list | show | history | rollback | export | import`."""

import json

from memalign_graph import Episode, Guideline
from memalign_graph.memory.history import Commit
from tests.integration_tests.cli.support import ANN, BOB, Shell


def test_list_prints_guidelines_and_episodes(shell: Shell) -> None:
    shell.align(ANN, BOB)
    ran = shell.memory("list")
    assert ran.status == 0
    guidelines, episodes, version = shell.opened()
    output = " ".join(ran.out.split())
    assert f"version {version}" in output
    assert f"guidelines: 1 id status episode_ids text {guidelines[0].id[:8]} standing 1 " in output
    assert "episodes: 2 id status author value rationale " in output
    for episode in episodes:
        assert f"{episode.id[:8]} distilled {episode.author} " in output
    listed = shell.memory("list", "--json").document
    assert listed["version"] == version
    assert [Guideline.model_validate(guideline) for guideline in listed["guidelines"]] == guidelines
    assert [Episode.model_validate(episode) for episode in listed["episodes"]] == episodes


def test_show_finds_a_guideline_or_episode_by_id_prefix(shell: Shell) -> None:
    shell.align(ANN)
    [guideline], [episode], _ = shell.opened()
    assert "give 4 characters or more" in shell.memory("show", guideline.id[:3]).refusal
    ran = shell.memory("show", guideline.id[:4].upper())
    assert ran.status == 0
    for text in (guideline.id, guideline.text, episode.id[:8], ANN["rationale"]):
        assert text in " ".join(ran.out.split())
    document = shell.memory("show", guideline.id, "--json").document
    assert document["type"] == "guideline"
    assert [item["id"] for item in document["episodes"]] == [episode.id]
    ran = shell.memory("show", episode.id[:6])
    for text in (ANN["inputs"], ANN["outputs"], "false", "f-1", guideline.id[:8]):
        assert text in " ".join(ran.out.split())
    document = shell.memory("show", episode.id[:6], "--json").document
    assert (document["type"], document["author"]) == ("episode", "ann")
    assert [guideline["id"] for guideline in document["guidelines"]] == [guideline.id]


def test_history_and_rollback(shell: Shell) -> None:
    shell.align(ANN)
    first = shell.opened()[2]
    shell.align(BOB)
    second = shell.opened()[2]
    ran = shell.memory("history")
    assert ran.out.index(second[:8]) < ran.out.index(first[:8])
    commits = shell.memory("history", "--json").document["commits"]
    assert Commit.model_validate(commits[0]).version == second
    assert commits[0]["id"][:8] not in ran.out
    document = shell.memory("rollback", first[:8], "--json").document
    assert (document["version_before"], document["version"]) == (second, first)
    changes = document["episodes"]
    assert [len(changes[name]) for name in ("added", "removed", "changed")] == [0, 1, 0]
    assert shell.opened()[2] == first
    assert shell.memory("rollback", first[:8]).status == 0
    document = shell.memory("rollback", second, "--json").document
    assert (document["version_before"], document["version"]) == (first, second)
    assert len(document["episodes"]["added"]) == 1
    assert shell.memory("rollback", "0000").status == 0
    assert shell.opened()[1] == []
    assert shell.memory("list").status == 0  # it is still in the history
    assert "names no version" in shell.memory("rollback", "zzzz").error


def test_rollback_refuses_a_version_that_history_does_not_list(shell: Shell) -> None:
    shell.align(ANN)
    refusal = shell.memory("rollback", f" {'F' * 32}").refusal
    assert refusal.startswith("VERSION: the memory of 'support_tone' never had the version 'ffff")


def test_export_and_import_move_a_memory(shell: Shell) -> None:
    shell.align(ANN, BOB)
    assert shell.memory("export", "memory.jsonl").status == 0
    embedded = len(shell.server.embeddings)
    ran = shell.memory("import", "memory.jsonl", "-m", "new.db", "--json")
    assert ran.status == 0
    assert ran.document["episodes"] == 2
    assert shell.opened("new.db") == shell.opened()
    assert len(shell.server.embeddings) == embedded
    lines = shell.memory("export", "-").lines
    assert {line["type"] for line in lines} == {"memory", "guideline", "episode", "vector"}
    shell.align({**ANN, "value": True, "rationale": "Fine after all."})
    before = shell.opened()[1]
    ran = shell.memory("import", "memory.jsonl")
    assert "memalign: warning: Importing into 'support_tone': " in ran.err
    assert shell.opened()[1] == before


def test_export_overwrites_an_export_but_not_a_database(shell: Shell) -> None:
    shell.align(ANN)
    path = shell.write("memory.jsonl", "old")
    mine, victim = shell.write("memory.jsonl.mine", "mine"), shell.write("victim", "precious")
    (shell.folder / "memory.jsonl.part").symlink_to(victim)
    assert shell.memory("export", "memory.jsonl", "--json").document["episodes"] == 1
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["type"] == "memory"
    assert (mine.read_text(), victim.read_text()) == ("mine", "precious")
    assert not list(shell.folder.glob("memory.jsonl.*.part"))
    before = shell.opened()
    for name in ("memalign.db", "tone.yaml", ".", "no/such", "/dev/full"):
        ran = shell.memory("export", name)
        assert (ran.status, name in ran.error) == (2, True)
    assert shell.opened() == before


def test_failed_import_creates_and_changes_no_memory(shell: Shell) -> None:
    shell.align(ANN)
    shell.memory("export", "memory.jsonl")
    shell.write("other.yaml", "name: other\ninstructions: Is it true?\n")
    ran = shell.run("memory", "import", "-c", "other.yaml", "-m", "new.db", "memory.jsonl")
    assert "memory.jsonl: line 1: it is the memory of criterion 'support_tone'" in ran.refusal
    assert not list(shell.folder.glob("new.db*"))
    text = (shell.folder / "memory.jsonl").read_text(encoding="utf-8")
    shell.write("cut.jsonl", text[: len(text) // 2])
    before = shell.opened()
    assert shell.memory("import", "cut.jsonl").refusal.startswith("FILE: cut.jsonl: line ")
    assert shell.opened() == before


def test_missing_memory_error_lists_the_memories_in_the_file(shell: Shell) -> None:
    shell.align(ANN, options=["--namespace", "shop.emea"])
    for action in (["list"], ["history"], ["show", "abcd"], ["export", "x"], ["rollback", "0000"]):
        assert "It has: shop.emea.support_tone." in shell.memory(*action).refusal
    assert not (shell.folder / "x").exists()


def test_file_with_only_judgments_explains_how_to_learn(shell: Shell) -> None:
    shell.settings(judge={"keep_judgments": 30})
    assert shell.judge({"inputs": "Where is it?", "outputs": "No idea."}).status == 0
    assert "It has: nothing. Check --namespace" in shell.memory("list").error


def test_criterion_may_come_from_the_environment(shell: Shell, monkeypatch: object) -> None:
    shell.align(ANN)
    assert "'--criterion'" in shell.run("memory", "list").refusal
    monkeypatch.setenv("MEMALIGN_CRITERION", "tone.yaml")  # type: ignore[attr-defined]
    assert shell.run("memory", "list").status == 0
