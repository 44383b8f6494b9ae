"""The libp2p daemon p2pd: a child process that is started, watched, started again, and never left behind.

Owns the child, its sockets (a private directory) and the pid file. Knows nothing of DHT, records or streams; whoever
uses the daemon is told when it is up and when it is down.

p2pd ends itself when its control connection closes, so it dies with this process whatever kills that; should it hang
instead, the next start ends it by the pid file. Nobody else can own it then: the key's lock is held by us. It has a
session of its own: Ctrl-C in a terminal reaches us only, who still have a goodbye to send through it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from noloco_node.core import limits
from noloco_node.discovery.addresses import Address, parse_address
from noloco_node.discovery.control import DaemonControl
from noloco_node.discovery.hivemind_library import P2P, P2PDaemonError, hivemind_cli
from noloco_node.discovery.identity import Identity
from noloco_node.discovery.listening import wait_for_free_ports
from noloco_node.discovery.settings import PID_FILE, DiscoverySettings
from noloco_node.errors import DaemonFailed, NolocoError, PeerLost

log = logging.getLogger(__name__)


class Daemon:
    """One p2pd under supervision. `on_up` gets each new `P2P`; `on_down` is told when it is gone."""

    def __init__(
        self,
        settings: DiscoverySettings,
        identity: Identity,
        listen: tuple[Address, ...],
        *,
        on_up: Callable[[P2P, DaemonControl], Awaitable[None]],
        on_down: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._listen = listen
        self._on_up = on_up
        self._on_down = on_down
        self._p2p: P2P | None = None
        self._control: DaemonControl | None = None
        self._sockets: Path | None = None
        self._watch: asyncio.Task[None] | None = None
        self._deaths: deque[float] = deque(maxlen=limits.DAEMON_RESTARTS_MAX)
        self.addresses: tuple[Address, ...] = ()
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._p2p._child.pid if self._p2p is not None else None

    async def start(self) -> None:
        """Raises PortInUse, DaemonFailed."""
        self._reap_orphan()
        self._sockets = Path(tempfile.mkdtemp(prefix="noloco-p2pd-"))
        await self._launch()
        self._watch = asyncio.create_task(self._supervise(), name="p2pd supervisor")

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._end()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        self._pid_file.unlink(missing_ok=True)

    # --- start and end of one child ---------------------------------------------------------------

    async def _launch(self) -> None:
        await wait_for_free_ports(self._listen)
        kind = _daemon_kind(self._settings, self._sockets)
        timeout_s = self._settings.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s + limits.DAEMON_STOP_S):
                p2p = await kind.create(**self._options())
            async with asyncio.timeout(timeout_s):
                await self._adopt(p2p, DaemonControl(kind.control_path(p2p)))
        except (TimeoutError, P2PDaemonError, OSError, asyncio.IncompleteReadError, PeerLost) as error:
            self._p2p = self._control = None
            await _stop(kind.latest)
            raise _failure(error, timeout_s) from error
        except BaseException:
            self._p2p = self._control = None
            await asyncio.shield(_stop(kind.latest))
            raise

    async def _adopt(self, p2p: P2P, control: DaemonControl) -> None:
        self._p2p, self._control = p2p, control
        self._write_pid_file(p2p._child.pid)
        await self._learn_addresses()
        self._listen = tuple(_with_port_in_use(address, self.addresses) for address in self._listen)
        await self._on_up(p2p, control)

    def _options(self) -> dict[str, Any]:
        """Everything P2P.create takes, so that none of its defaults (UPnP, AutoNAT, public IPFS) applies by itself."""
        reach = self._settings.reach
        return {
            "host_maddrs": [str(address) for address in self._listen],
            "announce_maddrs": [str(parse_address(text).without_peer()) for text in self._settings.announce] or None,
            "identity_path": str(self._identity.path.resolve()),
            "check_if_identity_free": False,  # it would start a second p2pd; the lock on the key does this
            "initial_peers": None,  # they are connected to later, so that a dead one does not matter
            "trusted_relays": list(self._settings.initial_peers) or None if reach.auto_relay else None,
            "dht_mode": "client" if reach.client_mode else "server",
            "force_reachability": reach.force or None,
            "auto_nat": reach.auto_nat,
            "nat_port_map": reach.port_map,
            "use_relay": reach.relay,
            "use_auto_relay": reach.auto_relay,
            "use_ipfs": False,
            "conn_manager": True,
            "tls": True,
            "no_listen": False,
            "relay_hop_limit": 0,
            "idle_timeout": limits.DAEMON_IDLE_S,
            "startup_timeout": self._settings.start_timeout_s,
        }

    async def _end(self) -> None:
        p2p, self._p2p, self._control = self._p2p, None, None
        await _stop(p2p)

    # --- supervision ------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            try:
                await self._replace_when_dead()
            except Exception:
                log.exception("supervision of the libp2p daemon broke; going on")
                await asyncio.sleep(limits.DAEMON_RESTART_MAX_S)

    async def _replace_when_dead(self) -> None:
        reason = await self._death()
        log.warning("the libp2p daemon is gone (%s); starting it again", reason)
        self._on_down(reason)
        await self._end()
        await self._launch_again()

    async def _death(self) -> str:
        """Returns when the child has ended or does not answer any more."""
        if self._p2p is None:
            return "it was not started"
        child = asyncio.ensure_future(self._p2p._child.wait())
        silence = asyncio.ensure_future(self._silence())
        try:
            await asyncio.wait({child, silence}, return_when=asyncio.FIRST_COMPLETED)
            return f"exit code {child.result()}" if child.done() else "it does not answer"
        finally:
            child.cancel()
            silence.cancel()

    async def _silence(self) -> None:
        missed = 0
        while missed < limits.DAEMON_PROBES_MISSED_MAX:
            await asyncio.sleep(limits.DAEMON_PROBE_S)
            try:
                async with asyncio.timeout(limits.DAEMON_PROBE_S):
                    await self._learn_addresses()
                missed = 0
            except (TimeoutError, PeerLost):
                missed += 1

    async def _launch_again(self) -> None:
        pause_s = self._first_pause()
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._launch()
                self.restarts += 1
                return
            except Exception as error:
                cause = error.cause if isinstance(error, NolocoError) else f"{type(error).__name__}: {error}"
                log.error("%s", cause, exc_info=not isinstance(error, NolocoError))
                self._on_down(cause)
                pause_s = min(max(2 * pause_s, limits.BOOTSTRAP_RETRY_S), limits.DAEMON_RESTART_MAX_S)

    def _first_pause(self) -> float:
        """Short for a few deaths, long once DAEMON_RESTARTS_MAX of them fall into one window."""
        now = time.monotonic()
        self._deaths.append(now)
        full = len(self._deaths) == limits.DAEMON_RESTARTS_MAX
        often = full and now - self._deaths[0] < limits.DAEMON_RESTART_WINDOW_S
        return limits.DAEMON_RESTART_MAX_S if often else limits.DAEMON_RESTART_S

    async def _learn_addresses(self) -> None:
        if self._control is not None:
            self.addresses = tuple(await self._control.identify())

    # --- pid file ---------------------------------------------------------------------------------

    @property
    def _pid_file(self) -> Path:
        return self._settings.data_dir / PID_FILE

    def _write_pid_file(self, pid: int) -> None:
        with suppress(OSError):  # it only helps the next start to clean up
            self._pid_file.write_text(json.dumps({"pid": pid, "sockets": str(self._sockets)}))

    def _reap_orphan(self) -> None:
        """End what a killed predecessor may have left: a hung p2pd with our key, a directory of dead sockets."""
        try:
            left = json.loads(self._pid_file.read_text())
            pid, sockets = int(left["pid"]), Path(left["sockets"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if _runs_with_key(pid, self._identity.path):
            log.warning("ending p2pd %d, left behind by an earlier run", pid)
            os.kill(pid, signal.SIGKILL)
        if sockets.name.startswith("noloco-p2pd-"):
            shutil.rmtree(sockets, ignore_errors=True)


def _runs_with_key(pid: int, identity_path: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"-id={identity_path.resolve()}".encode() in words


def _daemon_kind(settings: DiscoverySettings, sockets: Path | None) -> Any:
    """hivemind's P2P with its sockets in our directory, our p2pd if one is named, and a handle on a failed start."""

    class OwnP2P(P2P):  # type: ignore[misc]
        _UNIX_SOCKET_PREFIX = f"/unix{sockets}/"
        latest: P2P | None = None

        def __init__(self) -> None:
            super().__init__()
            OwnP2P.latest = self

        @staticmethod
        def _make_process_args(*words: Any, **options: Any) -> list[str]:
            program = settings.p2pd_path or words[0]
            if not os.access(program, os.X_OK):
                raise P2PDaemonError(f"{program} cannot be executed")
            return [*_in_own_session(), *P2P._make_process_args(program, *words[1:], **options)]

        @staticmethod
        def control_path(p2p: P2P) -> str:
            return str(p2p._daemon_listen_maddr["unix"])

    return OwnP2P


def _in_own_session() -> list[str]:
    """hivemind starts the child itself and offers no way to say so; setsid replaces itself by the program."""
    setsid = shutil.which("setsid")
    return [setsid] if setsid else []


async def _stop(p2p: P2P | None) -> None:
    """End a child gently, then not."""
    if p2p is None:
        return
    p2p._terminate()
    child = p2p._child
    if child is None:
        return
    try:
        async with asyncio.timeout(limits.DAEMON_STOP_S):
            await child.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _failure(error: BaseException, timeout_s: float) -> DaemonFailed:
    if isinstance(error, TimeoutError) or "failed to start in" in str(error):
        return DaemonFailed(
            f"the libp2p daemon p2pd did not start within {timeout_s:g} s",
            "Raise the start timeout of the daemon, or free some processor time.",
        )
    return DaemonFailed(f"the libp2p daemon p2pd cannot run: {error}", "Check that hivemind is installed completely.")


def bundled_p2pd() -> Path:
    """The daemon that comes with hivemind."""
    return Path(hivemind_cli.__path__[0]) / "p2pd"


def _with_port_in_use(listen: Address, visible: tuple[Address, ...]) -> Address:
    """Port 0 becomes the port p2pd picked, so that a restarted daemon is found where it was."""
    if listen.tcp_port != 0:
        return listen
    for address in visible:
        alike = address.parts[0][0] == listen.parts[0][0] and len(address.without_peer().parts) == len(listen.parts)
        if alike and not address.relayed and address.tcp_port:
            return listen.with_tcp_port(address.tcp_port)
    return listen
