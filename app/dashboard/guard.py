"""Access control: only requests to a name of this server, for its pages' resources, from its own pages.

A web page elsewhere can point its own name to any address (DNS rebinding): its scripts then share an origin with the
server there, and read and write as the browser's user. Such a request names the page's own host.
"""

import ipaddress
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names under which a browser on this machine connects."""

HEADERS = {
    b"x-frame-options": b"DENY",
    b"content-security-policy": b"frame-ancestors 'none'; base-uri 'self'; object-src 'none'; form-action 'self'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
"""Headers of every answer: no other site can frame or load our pages, or learn their addresses."""


class Guard:
    """Middleware that answers only requests under one of `hosts`, or under the address at which they arrived."""

    def __init__(self, app: Any, hosts: Collection[str] = LOOPBACK) -> None:
        self._app = app
        self._hosts = {host.lower().rstrip(".") for host in hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer, or refuse in one sentence."""

        async def with_headers(message: Any) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in HEADERS]
                message["headers"] = [*kept, *HEADERS.items()]
            await send(message)

        refused = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            await self._app(scope, receive, with_headers)
        else:
            await _refuse(scope, with_headers, *refused)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        given = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in given if name == b"host"]
        host = host_name(hosts[0]) if len(hosts) == 1 else None
        if host is None or not (host in self._hosts or host == _arrived_at(scope)):
            return 421, "This server is not known by that name; start it with --allow-host NAME to let it be."
        origins = [value for name, value in given if name == b"origin"]
        if any(not self._is_own(origin, hosts[0]) for origin in origins):
            return 403, "This was asked by a page of another site."
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
            return 405, "Only GET is answered here."
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether the request comes from a page of this server: the same host and port, or, behind a proxy that hides
        the port, an allowed name that no other program on this machine uses."""
        parts = urlsplit(origin)
        if parts.netloc.lower() == host.lower():
            return True
        name = host_name(parts.netloc)
        return name in self._hosts and name not in LOOPBACK and name == host_name(host)


def host_name(host: str) -> str | None:
    """The name of a `Host` header, lower case, without port; None where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return None
    if name is None or parts.netloc != host or "@" in host:
        return None
    return name.rstrip(".")


def asked_on_this_machine(headers: Mapping[str, str]) -> bool:
    """Whether a request came from a browser on this machine, by its headers: under a loopback name, and not forwarded
    by a proxy. Without a `Host` there was no request: a test draws the page."""
    given = {name.lower(): value for name, value in headers.items()}
    if given.keys() & {"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"}:
        return False
    return "host" not in given or is_loopback(host_name(given["host"]) or "")


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches that address, or name."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _arrived_at(scope: Any) -> str | None:
    """This machine's own address that the connection was made to: nobody's name can be made to stand in its place."""
    server = scope.get("server")
    try:
        address = ipaddress.ip_address(str(server[0]).partition("%")[0]) if server else None
    except ValueError:
        return None
    return None if address is None else str(getattr(address, "ipv4_mapped", None) or address)


async def _refuse(scope: Any, send: Any, status: int, sentence: str) -> None:
    kind = ""
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        kind = "websocket."
    body = f"{sentence}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": f"{kind}http.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}http.response.body", "body": b"" if scope.get("method") == "HEAD" else body})
