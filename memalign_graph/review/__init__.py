"""The page on which experts answer, and see what was learned from them."""

import socket
from collections.abc import Callable

from memalign_graph.errors import InvalidInputError, needs_extra

with needs_extra("review", "the review page"):
    import uvicorn
    from starlette.applications import Starlette

    from memalign_graph.review.app import create_review_app
    from memalign_graph.review.desk import Desk

__all__ = ["Desk", "create_review_app", "serve_page"]


async def serve_page(app: Starlette, port: int, tell: Callable[[str], None]) -> None:
    """Serve the page on this machine until the program is stopped."""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise InvalidInputError(
            f"port: {port} cannot be used ({error.strerror}). Use another --port, or 0 for any."
        ) from error
    with listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/review"
        tell(f"the review page: {address} (Ctrl-C ends it)")
        await server.serve(sockets=[listener])
