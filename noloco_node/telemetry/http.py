"""The node seen from outside: /metrics, /healthz, /readyz, /status.json over plain HTTP on the node's own loop.

GET only; one request per connection; header size, time and number of connections are bounded. Loopback unless the
volunteer says otherwise: there is no authentication.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from noloco_node.errors import BadConfig, PortInUse
from noloco_node.telemetry.logs import logger

HEADER_BYTES_MAX = 8 * 1024
REQUEST_DEADLINE_S = 5.0
CONNECTIONS_MAX = 32
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
STATUS_LINES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
log = logger("http")

Answer = tuple[int, str, bytes]


class StatusServer:
    """`metrics` renders the text format, `status` is what /status.json shows, `ready` says (ready, reason)."""

    def __init__(
        self,
        metrics: Callable[[], bytes],
        status: Callable[[], dict[str, Any]],
        ready: Callable[[], tuple[bool, str]],
        *,
        deadline_s: float = REQUEST_DEADLINE_S,
    ) -> None:
        self._pages: dict[str, Callable[[], Answer]] = {
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, metrics()),
            "/healthz": lambda: (200, TEXT, b"ok\n"),
            "/readyz": lambda: _readiness(*ready()),
            "/status.json": lambda: (200, JSON, json.dumps(status(), default=str).encode() + b"\n"),
        }
        self._deadline_s = deadline_s
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, address: str = "127.0.0.1", port: int = 0) -> int:
        """Bind and serve; returns the port (a free one for 0). Raises PortInUse, BadConfig."""
        try:
            self._server = await asyncio.start_server(self._accept, address, port, limit=HEADER_BYTES_MAX)
        except OSError as error:
            raise _bind_fault(error, address, port) from error
        if not ip_address(address).is_loopback:
            log.warning("metrics_open_to_network", address=address, advice="anyone who reaches it can read it")
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, whatever comes: answered or dropped within the deadline."""
        try:
            async with asyncio.timeout(2 * self._deadline_s):
                writer.write(_encode(*await self._answer(reader)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            async with asyncio.timeout(self._deadline_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _plain(431)
        except asyncio.IncompleteReadError:
            return _plain(400)
        except TimeoutError:
            return _plain(408)
        return self._page(head)

    def _page(self, head: bytes) -> Answer:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _plain(400)
        method, target, _ = words
        page = self._pages.get(target.split("?", 1)[0])
        if page is None:
            return _plain(404)
        if method != "GET":
            return _plain(405)
        try:
            return page()
        except Exception:  # the border of a request: a fault in a page must not end the server
            log.exception("page_failed", page=target[:100])
            return _plain(500)


def _readiness(ready: bool, reason: str) -> Answer:
    return (200 if ready else 503), TEXT, f"{reason or ('ready' if ready else 'not ready')}\n".encode()


def _plain(code: int) -> Answer:
    return code, TEXT, f"{STATUS_LINES[code]}\n".encode()


def _encode(code: int, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {code} {STATUS_LINES[code]}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
    )
    return head.encode() + (b"Allow: GET\r\n" if code == 405 else b"") + b"\r\n" + body


def _bind_fault(error: OSError, address: str, port: int) -> PortInUse | BadConfig:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"metrics port {port} on {address} is in use", "choose another --metrics-port, or 0")
    return BadConfig(f"cannot serve metrics on {address} port {port}: {error.strerror}", "change --metrics-address")
