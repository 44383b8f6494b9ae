"""`noloco-node run`: join a swarm with this machine and train until stopped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from noloco_node.cli.ending import end_of, leave
from noloco_node.cli.node_options import node_config, node_options
from noloco_node.cli.signal_handlers import answered
from noloco_node.errors import ExitCode


@click.command()
@node_options
def run(**options: Any) -> None:
    """Join the swarm of a run spec with this machine and train until stopped.

    Ctrl-C or SIGTERM saves a checkpoint, says goodbye and ends with code 0; a second one ends at once.
    """
    with stops_that_end_the_start():  # first of all: as process 1 of a container a signal nobody handles is lost
        _run(options)


def _run(options: dict[str, Any]) -> NoReturn:
    config = node_config(options)
    from noloco_node.cli.preflight import check_start
    from noloco_node.config.spec_file import load_run_spec
    from noloco_node.telemetry.logs import open_log

    spec = load_run_spec(config.spec)
    named = {} if config.device == "auto" else {"device": config.device}
    open_log(config.log_format, config.log_level, **named)
    if config.devices:
        from noloco_node.cli.devices import run_on_devices

        leave(run_on_devices(config))
    check_start(config, spec)

    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its notices of closed connections are not news
    import uvloop

    from noloco_node.node import Node

    try:
        code = uvloop.run(Node(config, spec).run())
    except Exception as error:  # noqa: BLE001 - the process's own border, as in `cli.main`
        code = end_of(error, debug=click.get_current_context().obj["debug"])
    leave(code)


@contextlib.contextmanager
def stops_that_end_the_start() -> Iterator[None]:
    """Until the node takes the signals over there is nothing to save: a stop is just the end.

    Not by an exception: inside an import of somebody else's module it may be swallowed.
    """

    with answered(lambda number: leave(int(ExitCode.OK))):
        yield
