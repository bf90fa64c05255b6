"""Guard: who may talk to the server."""

from __future__ import annotations

from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app import places


class KnownHosts:
    """Refuses requests under a name, or from a page, that is not in `server.allowedHosts`.

    A page on the internet can have its own name lead to this machine (DNS rebinding), and could
    then read what is served here. Streamlit looks at the name for web sockets alone, and says
    nothing; here a person who came under another name reads what to do. And of a page from
    elsewhere Streamlit asks a service on the internet whether that is this machine's own.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers, names = Headers(scope=scope), st.get_option("server.allowedHosts")
        host = headers.get("host", "")
        origin = headers.get("origin")
        page = None if origin is None else urlsplit(origin).netloc
        if is_known(host, names) and (page in (None, host) or is_known(page or "", names)):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await PlainTextResponse(REFUSED, 403)(scope, receive, send)


class Elsewhere:
    """Answers a page that asks for its server below the address of a view that the server is not
    there. A page asks there first; answered "not found" the browser writes an error into its
    console, which is nobody's."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        *_, view, of, _ = ("", "", *str(scope.get("path", "")).split("/"))
        if scope["type"] == "http" and of == "_stcore" and view in places.ADDRESSES:
            await Response(status_code=300)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


REFUSED = (
    "This Memplan does not answer to the name in your address bar. Whoever runs it can allow the "
    "name: `memplan app --allow NAME`, or `streamlit run app/main.py --server.allowedHosts NAME`."
)


def is_known(host: str, names: list[str]) -> bool:
    """Whether a Host header has one of these names; '*.x' is every name that ends in '.x', and '*'
    every name there is."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    known = [known.strip().lower().rstrip(".") for known in names]
    return bool(name) and any(
        k in ("*", name) or (k.startswith("*.") and name.endswith(k[1:])) for k in known
    )
