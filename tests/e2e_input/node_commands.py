"""`noloco-node run` as a person types it: real processes on loopback, their last words, their status pages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from noloco_node.cli.local_swarm import end_with_parent
from noloco_node.config.presets import preset
from noloco_node.config.spec_file import dump
from noloco_node.errors import ExitCode

PROGRAM = (sys.executable, "-m", "noloco_node")
LOCAL_FLAGS = {
    "--listen": "/ip4/127.0.0.1/tcp/0",
    "--metrics-port": "0",
    "--device": "cpu",
    "--threads": "1",
    "--reachability": "public",
    "--stop-grace-s": "15",
}
PATIENCE_S = 120.0


def write_spec(folder: Path, name: str = "swarm.toml", **sections: Any) -> Path:
    """The tiny preset with changes: one stage of two seats, and an idle run until both are there."""
    swarm = {"num_stages": 1, "num_replicas": 2} | sections.pop("swarm", {})
    outer = {"total_outer_steps": 100_000, "start_seats": 2} | sections.pop("outer", {})
    path = folder / name
    path.write_text(dump(preset("tiny", swarm=swarm, outer=outer, **sections)))
    return path


def flags(spec: Path, data_dir: Path, *more: str, **changes: str) -> list[str]:
    """`changes`: flag names without dashes -> value, replacing the local ones."""
    values = {"--spec": str(spec), "--data-dir": str(data_dir)} | LOCAL_FLAGS
    values |= {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return ["run", *(part for pair in values.items() for part in pair), "--allow-private", "--no-relay", *more]


def environment(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("NOLOCO_")}
    return {**plain, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    stderr: str

    def is_fault(self, code: ExitCode, *words: str) -> bool:
        """The exit code, two plain last lines, the words in them, and no traceback anywhere. Raises AssertionError."""
        assert self.code == code, self.stderr
        lines = self.stderr.strip().splitlines()
        assert lines[-2].startswith("error: "), self.stderr
        assert lines[-1].startswith("advice: "), self.stderr
        assert "Traceback" not in self.stderr, self.stderr
        for word in words:
            assert word in lines[-2] + lines[-1], self.stderr
        return True


def run_to_end(arguments: Sequence[str], program: Sequence[str] = PROGRAM, **variables: str) -> Ended:
    done = subprocess.run(
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(**variables),
        preexec_fn=end_with_parent,
        check=False,
    )
    return Ended(done.returncode, done.stderr)


@dataclass(slots=True)
class RunningNode:
    """Use as a context manager: leaving it ends the process."""

    spec: Path
    data_dir: Path
    more: tuple[str, ...] = ()
    program: Sequence[str] = PROGRAM
    changes: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.program, *flags(self.spec, self.data_dir, *self.more, **self.changes)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                preexec_fn=end_with_parent,
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "enter it first"
        return self._process

    @property
    def log_path(self) -> Path:
        return self.data_dir.with_suffix(".log")

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        """Log lines that are JSON."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def said(self, event: str) -> bool:
        return any(line["event"] == event for line in self.events)

    @property
    def info(self) -> dict[str, Any]:
        """node.json of this very process; raises AssertionError before it is up."""
        try:
            found: dict[str, Any] = json.loads((self.data_dir / "node.json").read_text())
        except (OSError, ValueError):
            found = {}
        assert found.get("pid") == self.process.pid, self.log
        return found

    def page(self, name: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.info["url"] + name, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.page("/status.json")[1])
        return found

    def until(self, holds: Callable[[Self], Any], within_s: float = PATIENCE_S) -> Self:
        """Until `holds(self)`; it may fail to ask while the node starts. Raises AssertionError when the node ends."""
        deadline = time.monotonic() + within_s
        while True:
            assert self.process.poll() is None, self.log
            try:
                if holds(self):
                    return self
                fault = ""
            except (AssertionError, OSError, KeyError, ValueError) as error:
                fault = str(error)
            assert time.monotonic() < deadline, f"{fault}\n{self.log}"
            time.sleep(0.2)

    def until_up(self) -> Self:
        return self.until(lambda node: node.info["addresses"])

    @property
    def join_flags(self) -> tuple[str, ...]:
        """What another node needs to join by this one."""
        return tuple(part for address in self.info["addresses"] for part in ("--initial-peers", address))

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def ended(self) -> Ended:
        """Waits for an end of the node's own."""
        code = self.process.wait(PATIENCE_S)
        return Ended(code, self.log)
