"""`memalign memory list | show | history | rollback | export | import`."""

import json
import stat

from memalign_graph import Episode, Guideline
from memalign_graph.memory.history import Commit
from tests.integration_tests.cli.support import ANN, BOB, Shell


def test_list_tells_what_there_is(shell: Shell) -> None:
    shell.align(ANN, BOB)
    ran = shell.memory("list")
    assert ran.status == 0
    guidelines, episodes, version = shell.opened()
    head, _, one, _, rule, _, two, _, *rows = ran.out.splitlines()
    assert (
        head == f"memalign.db (namespace memalign, criterion support_tone), version {version[:8]}"
    )
    assert (one, two) == ("1 guideline", "2 episodes")
    assert rule.split()[:3] == [guidelines[0].id[:8], "standing", "1"]
    assert {row.split()[0] for row in rows} == {episode.id[:8] for episode in episodes}
    assert "ann" in rows[0] + rows[1]


def test_list_as_json_is_what_python_reads(shell: Shell) -> None:
    shell.align(ANN, BOB)
    listed = shell.memory("list", "--json").document
    guidelines, episodes, version = shell.opened()
    assert listed["version"] == version
    assert [Guideline.model_validate(one) for one in listed["guidelines"]] == guidelines
    assert [Episode.model_validate(one) for one in listed["episodes"]] == episodes


def test_list_is_cut_and_says_so(shell: Shell) -> None:
    shell.align(*({**ANN, "inputs": f"case {n}"} for n in range(5)))
    ran = shell.memory("list", "--limit", "2")
    assert "… and 3 more (--limit 0 shows all)" in ran.out.splitlines()
    assert "more (" not in shell.memory("list", "--limit", "0").out
    assert shell.memory("list", "--limit", "-1").status == 2


def test_show_a_guideline_with_its_sources(shell: Shell) -> None:
    shell.align(ANN)
    [guideline], [episode], _ = shell.opened()
    ran = shell.memory("show", guideline.id[:4].upper())
    assert ran.status == 0
    assert guideline.id in ran.out
    assert guideline.text in " ".join(ran.out.split())
    assert episode.id in ran.out
    assert "Too cold: it must say sorry first." in " ".join(ran.out.split())
    shown = shell.memory("show", guideline.id, "--json").document
    assert shown["type"] == "guideline"
    assert [one["id"] for one in shown["episodes"]] == [episode.id]


def test_show_an_episode_with_what_it_taught(shell: Shell) -> None:
    shell.align(ANN)
    [guideline], [episode], _ = shell.opened()
    ran = shell.memory("show", episode.id[:6])
    for text in (ANN["inputs"], ANN["outputs"], "false", "f-1", guideline.id):
        assert text in ran.out
    shown = shell.memory("show", episode.id[:6], "--json").document
    assert (shown["type"], shown["author"]) == ("episode", "ann")
    assert [one["id"] for one in shown["guidelines"]] == [guideline.id]


def test_history_and_the_way_back(shell: Shell) -> None:
    shell.align(ANN)
    first = shell.opened()[2]
    shell.align(BOB)
    second = shell.opened()[2]
    ran = shell.memory("history")
    assert first[:8] in ran.out
    assert ran.out.splitlines()[4].startswith(second[:8])
    commits = shell.memory("history", "--json").document["commits"]
    assert Commit.model_validate(commits[0]).version == second
    ran = shell.memory("rollback", first[:8], "--by", "eve")
    assert ran.status == 0
    assert f"from version {second[:8]} to {first[:8]}" in ran.out
    assert "episodes: 0 restored, 1 removed, 0 changed" in ran.out
    assert shell.opened()[2] == first
    [newest, *_] = shell.memory("history", "--json").document["commits"]
    assert (newest["reason"], newest["author"]) == ("rollback", "eve")
    ran = shell.memory("rollback", first[:8])
    assert ran.out.startswith("nothing to change")
    told = shell.memory("rollback", second, "--json").document
    assert (told["version_before"], told["version"]) == (first, second)
    assert len(told["episodes"]["restored"]) == 1


def test_rollback_to_the_empty_memory_and_back(shell: Shell) -> None:
    shell.align(ANN)
    version = shell.opened()[2]
    assert shell.memory("rollback", "0000").status == 0
    assert shell.opened()[1] == []
    assert shell.memory("list").status == 0  # it was one, and can be had back
    assert shell.memory("rollback", version[:4]).status == 0
    assert shell.opened()[2] == version


def test_export_and_import_move_a_memory(shell: Shell) -> None:
    shell.align(ANN, BOB)
    ran = shell.memory("export", "memory.jsonl")
    assert (ran.status, ran.out) == (0, "1 guideline and 2 episodes in memory.jsonl\n")
    embedded = len(shell.server.embeddings)
    ran = shell.memory("import", "memory.jsonl", "-m", "new.db", "--json")
    assert ran.status == 0
    assert ran.document["episodes"] == 2
    assert shell.opened("new.db") == shell.opened()
    assert len(shell.server.embeddings) == embedded


def test_export_to_stdout_is_the_lines_alone(shell: Shell) -> None:
    shell.align(ANN)
    ran = shell.memory("export", "-")
    assert [line["type"] for line in ran.lines] == ["memory", "guideline", "episode", "vector"]
    assert shell.memory("export", "-", "--json").status == 2


def test_an_export_replaces_an_older_one_but_no_database(shell: Shell) -> None:
    shell.align(ANN)
    path = shell.write("memory.jsonl", "old")
    path.chmod(0o640)
    assert shell.memory("export", "memory.jsonl", "--json").document["episodes"] == 1
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["type"] == "memory"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    before = shell.opened()
    for name in ("memalign.db", "tone.yaml", "."):
        ran = shell.memory("export", name)
        assert (ran.status, name in ran.error) == (2, True)
    assert shell.opened() == before
    left = {one.name for one in shell.folder.iterdir()}
    assert not [name for name in left if name.startswith(".memory")]


def test_an_import_that_fails_makes_no_memory(shell: Shell) -> None:
    shell.align(ANN)
    shell.memory("export", "memory.jsonl")
    shell.write("other.yaml", "name: other\ninstructions: Is it true?\n")
    ran = shell.run("memory", "import", "-c", "other.yaml", "-m", "new.db", "memory.jsonl")
    assert ran.status == 2
    assert "memory.jsonl: line 1: it is the memory of 'support_tone', not of 'other'" in ran.error
    assert not list(shell.folder.glob("new.db*"))
    text = (shell.folder / "memory.jsonl").read_text(encoding="utf-8")
    shell.write("cut.jsonl", text[: len(text) // 2])
    before = shell.opened()
    ran = shell.memory("import", "cut.jsonl")
    assert ran.status == 2
    assert ran.error.startswith("FILE: cut.jsonl: line ")
    assert shell.opened() == before


def test_an_import_of_what_is_older_is_told(shell: Shell) -> None:
    shell.align(ANN)
    shell.memory("export", "memory.jsonl")
    shell.align({**ANN, "value": True, "rationale": "Fine after all."})
    before = shell.opened()
    ran = shell.memory("import", "memory.jsonl")
    assert ran.status == 0
    assert "memalign: warning: Importing into 'support_tone': " in ran.err
    assert shell.opened()[1] == before[1]


def test_a_file_without_this_memory_names_those_it_has(shell: Shell) -> None:
    shell.align(ANN, options=["--namespace", "shop.emea"])
    for action in (["list"], ["history"], ["show", "abcd"], ["export", "x"], ["rollback", "0000"]):
        ran = shell.memory(*action)
        assert ran.status == 2
        assert "it holds shop.emea.support_tone" in ran.error
    assert not (shell.folder / "x").exists()


def test_ids_that_name_nothing_or_too_much(shell: Shell) -> None:
    shell.align(*({**ANN, "inputs": f"case {n}"} for n in range(9)), options=["-q"])
    ids = [one.id for one in shell.opened()[1]]
    assert "names no guideline or episode" in shell.memory("show", "zzzz").error
    assert "is too short" in shell.memory("show", ids[0][:3]).error
    assert "names no version" in shell.memory("rollback", "zzzz").error
    assert shell.memory("show", ids[0]).status == 0
    assert shell.memory("show", "").status == 2


def test_the_criterion_may_come_from_the_environment(shell: Shell, monkeypatch: object) -> None:
    shell.align(ANN)
    ran = shell.run("memory", "list")
    assert (ran.status, "'--criterion'" in ran.error) == (2, True)
    monkeypatch.setenv("MEMALIGN_CRITERION", "tone.yaml")  # type: ignore[attr-defined]
    assert shell.run("memory", "list").status == 0
