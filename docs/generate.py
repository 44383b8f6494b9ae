"""What the documents say about the code, made from the code: `python docs/generate.py` writes it, `--check` compares.

Sections stand between `<!-- made by docs/generate.py: NAME -->` and `<!-- end -->`; whole pages say so at their top.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

from noloco_node.cli.exit_codes import exit_codes_page
from noloco_node.config.node_config import NodeConfig
from noloco_node.config.node_sources import flag, variable
from noloco_node.config.run_spec import RunSpec
from noloco_node.core import exchange_desk, limits, phases
from noloco_node.core.codec_sizes import LAYOUTS
from noloco_node.telemetry.instruments import Instruments
from noloco_node.training.state_sizes import (
    CHECKPOINT_PARTS,
    DEVICE_BYTES_PER_PARAMETER,
    DEVICE_PARTS,
    FLOAT_BYTES,
    exchange_parts,
    host_bytes_per_parameter,
    prefetch_parts,
)

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- made by docs/generate.py: {} -->\n", "<!-- end -->"
SHOWN_FRAGMENTS = 8  # of mode stream
MADE = "This page is made by `docs/generate.py`; change the code, then run `make docs`.\n"

SHOWN_LIMITS = {
    "CHUNK_BYTES_MAX": "piece of a tensor or file on the wire",
    "MESSAGE_BYTES_MAX": "one gRPC message, both sides",
    "ACTIVATION_BYTES_MAX": "activation of one micro-batch",
    "HOPS_RECEIVING_MAX": "activations arriving at once, BUSY beyond",
    "LINKS_MAX": "exchange links of all peers",
    "STREAMS_PER_PEER_MAX": "streams of one peer",
    "RECORD_BYTES_MAX": "one signed seat record",
    "RECORDS_PER_SEAT_MAX": "records kept of one seat",
    "DHT_ENTRIES_MAX": "records kept for the swarm",
    "OFFERS_MAX": "seats asked when the drawn partner is absent or taken",
    "EXCHANGE_MEMORY_STEPS": "closed outer steps that still answer",
    "REPLAY_MEMORY_STEPS": "inner steps whose micro-batch ids are remembered",
    "NORM_FACTOR_MAX": "times the running median: a larger correction is refused",
    "STRIKES_TO_BAN": "broken rules until a peer is not served",
    "BAN_S": "a ban lasts; so many strikes are forgotten in it, one by one",
    "STALL_S": "without a byte, an exchange stream is reopened",
    "HOP_GIVE_UP_S": "a micro-batch that no candidate takes is dropped",
    "STALE_STEPS_MAX": "further behind its stage, a node fetches state",
    "STATE_UPLOADS_MAX": "newcomers served with state at once, one place kept for holders of a seat",
    "STOP_GRACE_S": "a stop ends the process within",
    "CHECKPOINTS_KEPT": "per seat",
}


def limits_table() -> str:
    rows = (f"| `{name}` | {_amount(name)} | {words} |\n" for name, words in SHOWN_LIMITS.items())
    return "| limit | value | of |\n|---|---:|---|\n" + "".join(rows)


def _amount(name: str) -> str:
    value = getattr(limits, name)
    if "_BYTES" in name:
        return f"{value / limits.MIB:g} MiB" if value >= limits.MIB else f"{value:,} bytes"
    return f"{value:g} s" if name.endswith("_S") else f"{value:,g}"


def metrics_page() -> str:
    """Every metric with its labels, in the order of telemetry/instruments.py."""
    lines = ["# Metrics\n", MADE, "`/metrics` of a node, in Prometheus text format. Units stand last in the names.\n"]
    lines += ["| metric | type | labels | what |", "|---|---|---|---|"]
    for metric in vars(Instruments()).values():
        if isinstance(metric, MetricWrapperBase):
            family = metric.describe()[0]
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            lines.append(f"| `{name}` | {family.type} | {labels or '-'} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def configuration_page() -> str:
    """Every key of node.toml and of swarm.toml."""
    node = [
        f"| `{name}` | `{flag(name)}` | `{variable(name)}` | {_default(name, field)} | {_cell(field.description)} |"
        for name, field in NodeConfig.model_fields.items()
    ]
    parts = [
        "# Configuration\n",
        MADE,
        "## The node: flags, variables, node.toml\n",
        "What the volunteer chooses. A flag outranks a variable, a variable the file (`--config`, `NOLOCO_CONFIG`), "
        "the file the default. Lists: repeat the flag, or separate by commas.\n",
        "| key of node.toml | flag of `run` | variable | default | what |\n|---|---|---|---|---|\n"
        + "\n".join(node)
        + "\n",
        "## The run: swarm.toml\n",
        "What all nodes of a run must agree on. Its hash is the run id: nodes with another file are turned away.\n",
    ]
    for name, field in RunSpec.model_fields.items():
        parts.append(_section(name, field.annotation))
    return "\n".join(parts)


def memory_page() -> str:
    """What a seat holds, in bytes per parameter of its stage."""
    device = [f"| {what} | 4 | {when} |" for what, when in DEVICE_PARTS]
    whole, in_parts = host_bytes_per_parameter, exchange_parts
    found = [
        (codec, str(fragments), in_parts(codec, fragments), whole(codec, fragments))
        for fragments in (1, SHOWN_FRAGMENTS)
        for codec in LAYOUTS
    ] + [
        (codec, "1, `prefetch`", prefetch_parts(codec), whole(codec, 1, prefetch=True))
        for codec in LAYOUTS
        if not codec.startswith("lattice")
    ]
    codecs = [
        f"| `{codec}` | {fragments} | "
        + " | ".join(f"{size:.3g}" for _, size in parts)
        + f" | {together - DEVICE_BYTES_PER_PARAMETER:.3g} |"
        for codec, fragments, parts, together in found
    ]
    heads = " | ".join(what for what, _ in exchange_parts("float32", 1))
    return "\n".join(
        [
            "# Memory\n",
            MADE,
            "Bytes per parameter of the stage that a node trains. Activations come on top (they depend on the "
            "micro-batch; `activation_checkpointing` makes them small), and so do Python and its libraries: about 0.5 "
            "GiB.\n",
            "## On the device\n",
            "| what | bytes per parameter | when |\n|---|---:|---|",
            *device,
            f"| together | {DEVICE_BYTES_PER_PARAMETER} | |\n",
            "## On the host\n",
            "In the modes `joint` and `overlap` an exchange is of all weights; in `stream` of one of several "
            f"fragments, here {SHOWN_FRAGMENTS}; in `prefetch` of phi and of Delta, each by itself. A checkpoint's "
            f"copy is {CHECKPOINT_PARTS * FLOAT_BYTES} bytes: theta, phi, delta and the two moments; it is held until "
            "it is on the disk. On a CPU the state of the device lies there as well.\n",
            f"| codec | fragments | {heads} | together, with a checkpoint |\n|---|---:|{'---:|' * 5}",
            *codecs,
            "",
            "`python benchmarks/memory_bench.py` measures it: resident memory of a trainer on the CPU, step by step.\n",
        ]
    )


def _default(name: str, field: Any) -> str:
    if name == "data_dir":
        return "`~/.local/share/noloco-node`"
    value = field.default
    if value is None or value == ():
        return "-"
    shown = ", ".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else value
    return f"`{shown}`"


def _section(name: str, kind: Any) -> str:
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return f"### [{name}]\n\nA Hugging Face config, written out, or `config_file` = its path.\n"
    rows = [
        f"| `{key}` | {'needed' if field.is_required() else f'`{_toml(field.default)}`'} | {_cell(field.description)} |"
        for key, field in kind.model_fields.items()
    ]
    return f"### [{name}]\n\n| key | default | what |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else f"{value:g}"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


SECTIONS: dict[str, Callable[[], str]] = {
    "phases": phases.table_markdown,
    "exchange": exchange_desk.table_markdown,
    "limits": limits_table,
}
PAGES: dict[str, Callable[[], str]] = {
    "docs/configuration.md": configuration_page,
    "docs/exit-codes.md": exit_codes_page,
    "docs/memory.md": memory_page,
    "docs/metrics.md": metrics_page,
}
WITH_SECTIONS = ("ARCHITECTURE.md",)


def filled(text: str) -> str:
    """`text` with every section made anew."""
    for name, make in SECTIONS.items():
        begin = BEGIN.format(name)
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(END), re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"no section {name!r} to fill")
        text = pattern.sub(lambda _, begin=begin, make=make: begin + make() + END, text)
    return text


def wanted() -> dict[str, str]:
    """Path below the root -> the text it should have."""
    with_sections = {name: filled((ROOT / name).read_text("utf-8")) for name in WITH_SECTIONS}
    return with_sections | {name: make() for name, make in PAGES.items()}


def drift() -> list[str]:
    """Documents that do not say what the code says."""
    return [name for name, text in wanted().items() if not (path := ROOT / name).exists() or path.read_text() != text]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 on drift")
    if parser.parse_args().check:
        differing = drift()
        for name in differing:
            print(f"{name} is out of date (run `make docs`)", file=sys.stderr)
        return 1 if differing else 0
    for name, text in wanted().items():
        (ROOT / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
