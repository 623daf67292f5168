"""Authentication by cookie for an Agent Server; users see only their own threads."""

from http.cookies import SimpleCookie
from typing import Any

from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(headers: dict[bytes, bytes]) -> Auth.types.MinimalUserDict:
    cookie = SimpleCookie(headers.get(b"cookie", b"").decode())
    if "user" not in cookie:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who are you?")
    return {"identity": cookie["user"].value}


@auth.on.threads
async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Auth.types.FilterType:
    owner = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(owner)
    return owner
