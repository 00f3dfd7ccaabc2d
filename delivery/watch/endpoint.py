"""The HTTP endpoint that Prometheus asks.

What it is: `Endpoint`, one thread that answers GET /metrics, and `address_in`.
What it must not know: what is measured.

Invariants:
    One question is answered at a time, and a client that sends nothing is cut off: nobody can make
    this process start threads or wait.
    Nothing is answered but GET /metrics; nothing that is sent is read beyond its first lines.
    A bare port listens on this machine only.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

from dedup.errors import InvalidUsage
from delivery.watch.exposition import CONTENT_TYPE

__all__ = ["PORT_DEFAULT", "Endpoint", "address_in"]

#: What OpenTelemetry's exporters for Prometheus listen on.
PORT_DEFAULT = 9464
#: How long a client may take to ask, and to take the answer.
CLIENT_SECONDS_MAX = 5.0
#: How often the thread looks whether it is to end.
POLL_SECONDS = 0.2
PORT_MAX = 65_535
LOCAL = "127.0.0.1"


def address_in(text: str | int) -> tuple[str, int]:
    """Return host and port from "host:port", or a port of this machine's own; 0: a free one.

    Raises:
        InvalidUsage: it is neither.
    """
    host, _, port = str(text).rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise InvalidUsage(
            "serve metrics",
            repr(text),
            "say a port (9464), which this machine alone can reach, or host:port (0.0.0.0:9464); "
            "nothing was started",
        )
    return host.strip("[]") or LOCAL, int(port)


class _Server(TCPServer):
    """Listens without asking who it is: a name server that is slow must not hold a job up."""

    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class Endpoint:
    """Listens until it is closed.

    Args:
        address: where.
        text: what /metrics answers; called in the endpoint's own thread, one call at a time.

    Raises:
        InvalidUsage: the address is in use, or is not this machine's.
    """

    def __init__(self, address: tuple[str, int], text: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = CLIENT_SECONDS_MAX

            def do_GET(self) -> None:
                """Answer."""
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(HTTPStatus.NOT_FOUND, "there is only /metrics")
                    return
                body = text().encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing: a line for every scrape helps nobody."""

        try:
            self._server = _Server(address, Handler)
        except OSError as error:
            raise InvalidUsage(
                "serve metrics",
                f"{address[0]}:{address[1]}",
                f"{error.strerror or error}; nothing was started: choose another address, or port 0 "
                "for a free one",
            ) from error
        self.host, self.port = address[0], int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(POLL_SECONDS,),
            name="delivery-metrics",
            daemon=True,
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """What Prometheus is told."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Listen no more. May be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
