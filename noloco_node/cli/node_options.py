"""The flags of `noloco-node run`, one for each field of NodeConfig, so that the two cannot drift apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from noloco_node.config.node_config import NodeConfig
from noloco_node.config.node_sources import flag, load_node_config, variable
from noloco_node.errors import BadConfig

Command = TypeVar("Command", bound=Callable[..., Any])
CONFIG_OPTION = "config"
PEER_ADVICE = (
    "ask that node, which waits until it is up: noloco-node status --data-dir DIR --address --wait 120; "
    "leave the flag out to be the first node"
)


def node_options(command: Command) -> Command:
    """Adds `--config` and a flag for every field. Hand the keyword arguments to `node_config` as they are."""
    for name, field in reversed(NodeConfig.model_fields.items()):
        command = _option(name, str(field.description), field.annotation)(command)
    return click.option(f"--{CONFIG_OPTION}", help="node.toml with the values of these flags. [env NOLOCO_CONFIG]")(
        command
    )


def node_config(options: dict[str, Any]) -> NodeConfig:
    """Takes its own options out of `options`. Raises BadConfig."""
    flags = {name: options.pop(name) for name in NodeConfig.model_fields if name in options}
    if any(not peer.strip() for peer in flags.get("initial_peers") or ()):
        raise BadConfig("--initial-peers is given an empty address: the first node is not up yet?", PEER_ADVICE)
    return load_node_config(flags, options.pop(CONFIG_OPTION, None))


def _option(name: str, description: str, kind: Any) -> Callable[[Command], Command]:
    """Values stay text: NodeConfig judges them, whichever way they came."""
    if kind is bool:
        return click.option(f"{flag(name)}/--no-{flag(name)[2:]}", name, default=None, help=_help(name, description))
    several = kind == tuple[str, ...]
    return click.option(flag(name), name, multiple=several, help=_help(name, description, several))


def _help(name: str, description: str, several: bool = False) -> str:
    return f"{description}{'; may be repeated' if several else ''} [env {variable(name)}]"
