"""Packages that come with an extra: what to say when they are missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turn a failed import in the block into one sentence that names the extra.

    Args:
        extra: The extra that brings the package, such as `local`.
        what: What the caller wanted to use, such as `LocalEmbeddings`.

    Yields:
        Nothing.

    Raises:
        ImportError: If an import in the block fails.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f'{what} needs the extra "{extra}": pip install "memalign-graph[{extra}]"',
            name=error.name,
        ) from error
