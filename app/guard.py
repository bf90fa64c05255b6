"""Guard: who may talk to the server, and to whom the server talks, which is nobody."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit import config, net_util


def ask_nobody() -> None:
    """Keep Streamlit from asking a service on the internet for this machine's address.

    It would ask when a page from elsewhere tries to connect, and where it serves all interfaces;
    the whole server waits for the answer.
    """
    net_util.get_external_ip = lambda: None


class KnownHosts:
    """Refuses requests under a name that is not in `server.allowedHosts`.

    A page on the internet can have its own name lead to this machine (DNS rebinding), and could
    then read what is served here. Streamlit looks at the name for web sockets alone, and says
    nothing; here a person who came under another name reads what to do.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")
        if is_known(host, config.get_option("server.allowedHosts")):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await PlainTextResponse(REFUSED, 403)(scope, receive, send)


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
