"""The node's log: text for a person on a terminal, one JSON object a line for everything else.

Owns format, level and what must never be written: key material, tokens, passwords. Log lines of libraries pass
through the same formatter. Events are named in snake case, values are given as keywords.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, TextIO

import structlog

from noloco_node.core.types import Seat

Format = Literal["auto", "text", "json"]
HIDDEN = "[hidden]"
SECRET_WORDS = frozenset(
    {"secret", "password", "passwd", "credential", "credentials", "authorization", "private", "key"}
)
SECRET_NAMES = frozenset({"token", "hf_token", "auth_token", "access_token", "cookie"})
SECRET_TEXT = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|$)|\bhf_\w{16,}", re.DOTALL)
NOISY = ("hivemind", "grpc", "asyncio", "datasets", "urllib3", "fsspec", "httpx", "filelock", "transformers")


def open_log(form: Format = "auto", level: str = "info", stream: TextIO | None = None, **everywhere: str) -> None:
    """Route structlog and the standard logging to `stream` (default stderr). May be called again. Every line carries
    `everywhere`."""
    stream = stream or sys.stderr
    as_text = form == "text" or (form == "auto" and stream.isatty())
    shared = _shared_processors(everywhere)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(shared, as_text, colours=as_text and stream.isatty()))
    _attach(handler, level)


def is_open() -> bool:
    return any(getattr(handler, "_noloco", False) for handler in logging.getLogger().handlers)


def logger(part: str, **bound: Any) -> structlog.stdlib.BoundLogger:
    """`part`: cli, node, driver, discovery, transport, training ... shown as `logger`."""
    log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(f"noloco.{part}", **bound)
    return log


def close_log() -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if getattr(handler, "_noloco", False)]:
        root.removeHandler(handler)


def _attach(handler: logging.Handler, level: str) -> None:
    close_log()
    root = logging.getLogger()
    handler._noloco = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for own in ("noloco", "noloco_node"):
        logging.getLogger(own).setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _shared_processors(everywhere: Mapping[str, str]) -> list[Any]:
    def add(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        return {**everywhere, **event}

    return [
        add,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]


def _formatter(shared: list[Any], as_text: bool, colours: bool) -> structlog.stdlib.ProcessorFormatter:
    if as_text:
        last: list[Any] = [structlog.dev.ConsoleRenderer(colors=colours)]
    else:
        last = [structlog.processors.format_exc_info, hide_secrets, structlog.processors.JSONRenderer(default=_plain)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def hide_secrets(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Values under telling names are hidden, bytes shown as their count, keys and tokens cut out of text."""
    for name, value in event.items():
        event[name] = HIDDEN if _is_secret(name) else _clean(value)
    return event


def _is_secret(name: str) -> bool:
    lowered = name.lower()
    return lowered in SECRET_NAMES or not SECRET_WORDS.isdisjoint(lowered.split("_"))


def _clean(value: Any) -> Any:
    match value:
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case Seat():
            return str(value)
        case str():
            return SECRET_TEXT.sub(HIDDEN, value)
        case Mapping():
            return {name: HIDDEN if _is_secret(str(name)) else _clean(item) for name, item in value.items()}
        case _:
            return value


def _plain(value: Any) -> str:
    """What JSON cannot hold: paths, enums."""
    return SECRET_TEXT.sub(HIDDEN, str(value))
