"""The page on which experts answer, and see what was learned from them."""

from collections.abc import Callable

from memalign_graph.errors import needs_extra

with needs_extra("review", "the review page"):
    import uvicorn
    from starlette.applications import Starlette

    from memalign_graph.review.app import create_review_app
    from memalign_graph.review.desk import Desk

__all__ = ["Desk", "create_review_app", "serve"]


async def serve(app: Starlette, port: int, tell: Callable[[str], None]) -> None:
    """Serve the page on this machine until the program is stopped."""
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="warning"))
    tell(f"the review page: http://127.0.0.1:{port}/review (Ctrl-C ends it)")
    await server.serve()
