"""Packages that come with an extra: what to say when they are missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turn a failed import in the block into one sentence that names the extra."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f'{what} needs the extra "{extra}": pip install "memalign-graph[{extra}]"',
            name=error.name,
        ) from error
