"""The pages that a monitoring system reads: `/metrics`, `/healthz`, `/readyz`. A thread of its own; reads, and changes
nothing."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from q36eval.errors import StorageError, UsageError
from q36eval.watch.service import Watch

ROUNDS_LATE = 3
"""The number of late rounds after which the process is unhealthy."""
LATE_S = 300.0
"""The time by which a round may exceed its plan."""
SILENCE_S = 10.0
"""The timeout of a silent reader."""


class Pages:
    """Serves them for as long as the process lives, or until it is closed."""

    def __init__(self, watch: Watch, host: str, port: int, version: str) -> None:
        """Raises UsageError where the port cannot be had, or the extra is not installed."""
        try:
            from q36eval.watch.exposition import page
        except ImportError as error:
            raise UsageError(
                "package-missing", "--metrics-port needs the extra watch: pip install 'q36eval[watch]'."
            ) from error

        class Handler(BaseHTTPRequestHandler):
            timeout = SILENCE_S

            def log_message(self, *_: object) -> None:
                """Nothing is logged: a scrape every 15 seconds is no news."""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                try:
                    if path == "/metrics":
                        body, kind = page(watch, version, self.headers.get("Accept", ""))
                        self._send(200, body, kind)
                    elif path in ("/healthz", "/readyz"):
                        problems = health(watch) if path == "/healthz" else readiness(watch)
                        text = "ok\n" if not problems else "".join(f"{problem}\n" for problem in problems)
                        self._send(503 if problems else 200, text.encode(), "text/plain; charset=utf-8")
                    else:
                        self._send(404, b"There are /metrics, /healthz and /readyz.\n", "text/plain")
                except StorageError as error:
                    self._send(503, f"{error}\n".encode(), "text/plain; charset=utf-8")

            def _send(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                "port-unavailable", f"The metrics cannot be served at {host}:{port}: {error}; name another port."
            ) from error
        self._server.daemon_threads = True
        self.address = f"http://{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True, name="pages").start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


def health(watch: Watch) -> list[str]:
    """Why the process should be restarted."""
    without = time.monotonic() - watch.rounded
    if without > ROUNDS_LATE * watch.deployment.every_s + LATE_S:
        return [f"no round has ended for {without:.0f} s"]
    return []


def readiness(watch: Watch) -> list[str]:
    """Why the deployment is not being watched."""
    problems = []
    if not watch.endpoint_up:
        problems.append("the endpoint has not answered in the newest round")
    waiting, bound = watch.store.spooled(), watch.deployment.spool_rounds
    if waiting >= bound:
        problems.append(f"{waiting} finished rounds wait for a history that takes none")
    if watch.disk_full:
        problems.append("the disk takes no more")
    return problems
