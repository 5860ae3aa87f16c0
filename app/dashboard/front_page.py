"""Tells the pages in a browser where their server is: below which path, so that nothing has to be tried.

Streamlit's script takes the path of a page (`/run`) for a folder that the server may lie in, and asks there first: two
requests that are not found, in every browser's console, before a page is drawn. `window.__streamlit` is its own way to
be told.
"""

from typing import Any

PAGES = ("review", "compare", "branch", "run", "kl", "evals", "canaries")
"""The last part of a page's address; what stands before it is where the server is, also below a proxy's path."""

_HEAD = b"<head>"
_TELL = f"""<script>window.__streamlit = {{ BACKEND_BASE_URL:
  location.origin + location.pathname.replace(/\\/(?:{"|".join(PAGES)})?\\/?$/, '') }};</script>""".encode()
_NOT_ASKED = (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range")
_NOT_TRUE = (b"content-length", b"etag", b"last-modified")


class FrontPage:
    """Middleware that writes it into the HTML that every page begins with; all else passes as it is."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer, with the HTML told where the server is."""
        headers = scope.get("headers", ())
        html = any(name == b"accept" and b"text/html" in value for name, value in headers)
        if scope["type"] != "http" or scope["method"] != "GET" or not html:
            await self._app(scope, receive, send)
            return
        start: dict[str, Any] = {}
        parts: list[bytes] = []

        async def held(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    await self._send(start, b"".join(parts), send)

        whole = [(name, value) for name, value in headers if name not in _NOT_ASKED]
        # nor a file by its name, past this: `http.response.pathsend` and what is like it
        await self._app(scope | {"headers": whole, "extensions": {}}, receive, held)

    async def _send(self, start: dict[str, Any], body: bytes, send: Any) -> None:
        given = start["headers"]
        if any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in given):
            body = body.replace(_HEAD, _HEAD + _TELL, 1)
            given = [(name, value) for name, value in given if name.lower() not in _NOT_TRUE]
            given.append((b"content-length", str(len(body)).encode()))
        await send(start | {"headers": given})
        await send({"type": "http.response.body", "body": body})
