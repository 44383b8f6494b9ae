"""`noloco-node status`: asks a running node over its own HTTP address and shows the answer as tables.

First the row that the demo's table shows; then whatever else `/status.json` holds, nested objects as `outer.inner`,
lists of objects as tables of their own.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from noloco_node.errors import SwarmUnreachable

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_PORT = "9464"
PORT_VARIABLE = "NOLOCO_METRICS_PORT"
RUN_FILE = "node.json"  # in a running node's data directory
PLAIN_WIDTH = 120  # columns where there is no terminal
ANSWER_BYTES_MAX = 1 << 20
TIMEOUT_S = 5.0
WAIT_RETRY_S = 0.5
ADVICE = "is the node running, and --url its metrics address and port?"


def find_url(url: str | None, data_dir: Path | None) -> str:
    """What was asked for; else what the node in the data directory says of itself; else the default port."""
    if url is not None:
        return url
    return default_url() if data_dir is None else str(read_run_file(data_dir)["url"])


def read_run_file(data_dir: Path) -> dict[str, Any]:
    """What a running node tells the owner of its data directory: url, addresses, pid. Raises SwarmUnreachable."""
    try:
        found = json.loads((data_dir / RUN_FILE).read_text("utf-8"))
        return {"url": found["url"], "addresses": list(found["addresses"]), "pid": found["pid"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SwarmUnreachable(
            f"no node runs in {data_dir}", "start it, or name another --data-dir or --url"
        ) from error


def default_url() -> str:
    """This machine's node, on the port that its environment names."""
    return f"http://127.0.0.1:{os.environ.get(PORT_VARIABLE) or DEFAULT_PORT}"


def read_page(url: str, page: str) -> bytes:
    """One page of a node. Raises SwarmUnreachable when it cannot be had."""
    address = url.rstrip("/") + page
    if not address.startswith(("http://", "https://")):
        raise SwarmUnreachable(f"{url!r} is not an http address", f"for example {default_url()}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        raise SwarmUnreachable(f"{address} answered {error.code}", ADVICE) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SwarmUnreachable(f"{address}: {getattr(error, 'reason', error)}", ADVICE) from error
    return content


def read_status(url: str) -> dict[str, Any]:
    """The node's /status.json. Raises SwarmUnreachable."""
    try:
        status = json.loads(read_page(url, "/status.json"))
    except ValueError as error:
        raise SwarmUnreachable(f"{url} does not answer with JSON", ADVICE) from error
    if not isinstance(status, dict):
        raise SwarmUnreachable(f"{url} does not answer with a JSON object", ADVICE)
    return status


def tables(status: dict[str, Any]) -> list[Table]:
    """The row of a node, a table of other scalars, and one for each list of objects."""
    from rich.table import Table

    from noloco_node.cli.live_table import SHOWN, node_table

    main = Table(show_header=False, box=None)
    found = [main]
    if "phase" in status:
        found.insert(0, node_table([status]))
        status = {name: value for name, value in status.items() if name not in SHOWN}
    for name, value in _flat(status).items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            found.append(_rows(name, value))
        else:
            main.add_row(name, _text(value))
    return found


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _rows(name: str, items: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    columns = list(dict.fromkeys(key for item in items for key in item))
    table = Table(*columns, title=name)
    for item in items:
        table.add_row(*(_text(item.get(column)) for column in columns))
    return table


def _text(value: Any) -> str:
    from rich.markup import escape

    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        case list():
            return ", ".join(_text(item) for item in value) or "-"
        case _:
            return escape(str(value))


def _address(data_dir: Path | None) -> str:
    if data_dir is None:
        raise click.UsageError("--address needs --data-dir: a node shows its addresses to its owner only")
    addresses: list[str] = read_run_file(data_dir)["addresses"]
    if not addresses:
        raise SwarmUnreachable("the node has no address that others can reach", "give it --listen or --announce")
    return addresses[0]


def _wait_up(url: str | None, data_dir: Path | None, wait_s: float) -> None:
    """Returns when the node answers, or after `wait_s`: what is asked next says then what is wrong."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            read_page(find_url(url, data_dir), "/healthz")
            return
        except SwarmUnreachable:
            time.sleep(min(WAIT_RETRY_S, max(0.0, deadline - time.monotonic())))


@click.command()
@click.option("--url", help=f"The node's metrics address.  [default: port {DEFAULT_PORT} here, or {PORT_VARIABLE}]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Instead of --url: the data directory it runs in.")
@click.option("--address", is_flag=True, help="Print the address others join by (with --data-dir).")
@click.option("--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, help="Seconds to wait for it to be up.")
@click.option("--json", "as_json", is_flag=True, help="The node's answer as it is.")
@click.option("--healthy", is_flag=True, help="Print nothing; exit 0 if the node lives (health checks).")
def status(url: str | None, data_dir: Path | None, address: bool, wait_s: float, as_json: bool, healthy: bool) -> None:
    """Show what a running node is doing."""
    _wait_up(url, data_dir, wait_s)
    if address:
        click.echo(_address(data_dir))
        return
    url = find_url(url, data_dir)
    if healthy:
        read_page(url, "/healthz")
        return
    answer = read_status(url)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    for table in tables(answer):
        console.print(table)
