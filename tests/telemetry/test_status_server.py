"""The HTTP pages of a node, asked politely, wrongly, slowly and all at once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from noloco_node.errors import BadConfig, PortInUse
from noloco_node.telemetry import http
from noloco_node.telemetry.http import CONNECTIONS_MAX, HEADER_BYTES_MAX, StatusServer

DEADLINE_S = 0.3


class Node:
    ready = (True, "")

    def status(self) -> dict[str, object]:
        return {"seat": "0.1", "loss": 1.5}


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
async def port(node: Node) -> AsyncIterator[int]:
    server = StatusServer(lambda: b"metric 1\n", lambda: node.status(), lambda: node.ready, deadline_s=DEADLINE_S)
    yield await server.start()
    await server.close()
    assert not server._connections


async def send(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def trickle(writer: asyncio.StreamWriter, request: bytes) -> None:
    for byte in request:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(DEADLINE_S / 8)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("waited in vain")


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    answer = await send(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


async def test_pages_answer(port: int) -> None:
    assert await get(port, "/metrics") == (200, "metric 1\n")
    assert await get(port, "/healthz") == (200, "ok\n")
    assert await get(port, "/readyz") == (200, "ready\n")
    code, body = await get(port, "/status.json?pretty=1")
    assert (code, json.loads(body)) == (200, {"seat": "0.1", "loss": 1.5})


async def test_not_ready_is_503_with_the_reason_while_alive(port: int, node: Node) -> None:
    node.ready = (False, "waiting for a bootstrap peer")
    assert await get(port, "/readyz") == (503, "waiting for a bootstrap peer\n")
    assert (await get(port, "/healthz"))[0] == 200


async def test_other_paths_and_methods_are_refused(port: int) -> None:
    assert (await get(port, "/"))[0] == 404
    assert (await get(port, "/../etc/passwd"))[0] == 404
    for method in ("POST", "PUT", "DELETE", "HEAD"):
        assert (await get(port, "/metrics", method))[0] == 405


async def test_fault_in_a_page_is_500_and_the_server_lives(port: int, node: Node) -> None:
    def broken() -> dict[str, object]:
        raise RuntimeError("secret detail")

    node.status = broken  # type: ignore[method-assign]
    code, body = await get(port, "/status.json")
    assert (code, "secret" in body) == (500, False)
    assert (await get(port, "/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("junk", "codes"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", (b"400",)),
        (b"\r\n\r\n", (b"400",)),
        (b"GET\r\n\r\n", (b"400",)),
        (b"GET /metrics\r\n\r\n", (b"400",)),
        (b"GET /metrics SPDY/3\r\n\r\n", (b"400",)),
        (b"GET /metrics HTTP/1.1\r\n", (b"408",)),
        (b"", (b"408",)),
        (b"GET /" + b"a" * (2 * HEADER_BYTES_MAX) + b" HTTP/1.1\r\n\r\n", (b"431", b"")),
        (b"x" * (4 * HEADER_BYTES_MAX), (b"431", b"")),
    ],
)
async def test_junk_is_answered_with_an_error_and_the_server_lives(
    port: int, junk: bytes, codes: tuple[bytes, ...]
) -> None:
    answer = await send(port, junk)
    assert (answer.split(b" ")[1] if answer else b"") in codes
    assert (await get(port, "/healthz"))[0] == 200


async def test_client_that_trickles_is_cut_at_the_deadline(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(reader.read())
    with pytest.raises(ConnectionError):
        await trickle(writer, b"GET /metrics HTTP/1.1\r\nHost: slow\r\nX: " + b"a" * 200)
    answer.cancel()
    writer.close()


async def test_client_that_does_not_read_is_cut(node: Node) -> None:
    server = StatusServer(lambda: b"x" * (64 << 20), node.status, lambda: node.ready, deadline_s=DEADLINE_S)
    port = await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await until(lambda: bool(server._connections))
    await until(lambda: not server._connections)
    writer.transport.abort()
    await server.close()


async def test_many_idle_connections_do_not_lock_others_out_for_long(port: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 8)]
    for _ in range(100):
        answer = await send(port, b"GET /healthz HTTP/1.1\r\n\r\n")
        if answer.startswith(b"HTTP/1.1 200"):
            break
        await asyncio.sleep(0.05)
    assert answer.startswith(b"HTTP/1.1 200")
    for _, writer in idle:
        writer.close()


async def test_port_in_use_names_it(node: Node) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port}"):
            await StatusServer(bytes, node.status, lambda: node.ready).start(port=port)


async def test_impossible_address_is_a_configuration_fault(node: Node) -> None:
    with pytest.raises(BadConfig, match=r"192\.0\.2\.1"):
        await StatusServer(bytes, node.status, lambda: node.ready).start("192.0.2.1")


async def test_binding_beyond_loopback_is_warned_of(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []

    class Log:
        def warning(self, event: str, **_: object) -> None:
            warned.append(event)

    monkeypatch.setattr(http, "log", Log())
    for address, expected in (("127.0.0.1", []), ("0.0.0.0", ["metrics_open_to_network"])):
        server = StatusServer(bytes, node.status, lambda: node.ready)
        await server.start(address)
        await server.close()
        assert warned == expected
