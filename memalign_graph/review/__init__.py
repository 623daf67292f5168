"""The page on which experts answer, and see what was learned from their answers.

`queue` lists the open tasks. `tasks` defines one, `leases` says who has it open, `threads` finds
tasks on an Agent Server, and `answers` stores answers and learns from them. `app` has the routes
with their handlers, and `requests` identifies reviewers. What is shown is prepared by `forms` and
`blocks` for a case, by `preview` before an answer, and by `dashboard` for a whole memory.
"""

import socket
from collections.abc import Callable

from memalign_graph.errors import InvalidInputError, require_extra

with require_extra("review", "the review page"):
    import uvicorn
    from starlette.applications import Starlette

    from memalign_graph.review.app import create_review_app
    from memalign_graph.review.queue import ReviewQueue

__all__ = ["ReviewQueue", "create_review_app", "serve_page"]


async def serve_page(app: Starlette, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until the process is stopped."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidInputError(
            f"port: {port} cannot be used on {host} ({error.strerror or error}). Use another port, "
            "0 for any, or an address of this machine as the host."
        ) from error
    with listener:
        # Without `proxy_headers`, so that the address of a request stays the proxy's own.
        config = uvicorn.Config(app, log_level="warning", proxy_headers=False)
        shown_host = f"[{host}]" if ":" in host else host
        address = f"http://{shown_host}:{listener.getsockname()[1]}/review"
        announce(f"the review page: {address} (Ctrl-C ends it)")
        await uvicorn.Server(config).serve(sockets=[listener])
