"""`noloco-node status`: asks a running node over its own HTTP address and shows the answer as a table.

Knows no field by heart: what `/status.json` holds is shown, nested objects as `outer.inner`, lists of objects as
tables of their own.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import click

from noloco_node.errors import SwarmUnreachable

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_URL = "http://127.0.0.1:9464"
ANSWER_BYTES_MAX = 1 << 20
TIMEOUT_S = 5.0
ADVICE = "is the node running, and --url its metrics address and port?"


def read_status(url: str) -> dict[str, Any]:
    """The node's /status.json. Raises SwarmUnreachable when nobody answers, or not with a status."""
    address = url.rstrip("/") + "/status.json"
    if not address.startswith(("http://", "https://")):
        raise SwarmUnreachable(f"{url!r} is not an http address", f"for example {DEFAULT_URL}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=TIMEOUT_S) as answer:
            status = json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise SwarmUnreachable(f"{address} answered {error.code}", ADVICE) from error
    except (OSError, urllib.error.URLError) as error:
        raise SwarmUnreachable(f"{address}: {getattr(error, 'reason', error)}", ADVICE) from error
    except ValueError as error:
        raise SwarmUnreachable(f"{address} does not answer with JSON", ADVICE) from error
    if not isinstance(status, dict):
        raise SwarmUnreachable(f"{address} does not answer with a JSON object", ADVICE)
    return status


def tables(status: dict[str, Any]) -> list[Table]:
    """One table of scalars, and one for each list of objects."""
    from rich.table import Table

    main = Table(show_header=False, box=None)
    found = [main]
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


@click.command()
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Where the node's metrics are.")
@click.option("--json", "as_json", is_flag=True, help="The node's answer as it is.")
def status(url: str, as_json: bool) -> None:
    """Show what a running node is doing."""
    answer = read_status(url)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    from rich.console import Console

    console = Console()
    for table in tables(answer):
        console.print(table)
