"""`noloco-node`: the commands a person types. This module imports nothing heavy; each command does for itself."""

from __future__ import annotations

from collections.abc import Sequence

import click

from noloco_node.cli.ending import end_of
from noloco_node.cli.lazy import Entry, LazyGroup
from noloco_node.cli.program import program

COMMANDS = {
    "demo": Entry("noloco_node.cli.demo:demo", "Train a small model in a swarm of local processes and export it."),
    "run": Entry("noloco_node.cli.run:run", "Join a swarm with this machine and train until stopped."),
    "swarm": Entry("noloco_node.cli.swarm:swarm", "Begin a new swarm: `swarm new` writes a run spec."),
    "status": Entry("noloco_node.cli.status:status", "Show what a running node is doing."),
    "export": Entry("noloco_node.cli.export:export", "Average the replicas into a Hugging Face model folder."),
    "eval": Entry("noloco_node.cli.evaluation:evaluate", "Measure held-out perplexity."),
    "generate": Entry("noloco_node.cli.generation:generate", "Sample text from an exported model."),
    "identity": Entry("noloco_node.cli.identity:identity", "Show, create, export or import this node's key."),
    "simulate": Entry(
        "noloco_node.cli.simulate:simulate", "Run the node's state machine in simulated swarms, many times."
    ),
    "version": Entry("noloco_node.cli.version:version", "Show versions of the node, the protocol and its libraries."),
}


class NodeGroup(LazyGroup):
    entries = COMMANDS


@click.group(cls=NodeGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, help="Print a traceback with an error.")
@click.pass_obj
def group(settings: dict[str, bool], debug: bool) -> None:
    """Help to train one large language model together with other volunteers, by NoLoCo (arXiv 2506.10911).

    Exit codes are listed in docs/exit-codes.md.
    """
    settings["debug"] = debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit code and lets no exception out."""
    settings = {"debug": False}
    try:
        ended = group.main(
            args=None if arguments is None else list(arguments),
            prog_name=program(),
            standalone_mode=False,
            obj=settings,
        )
    except BaseException as error:  # the process's own border
        if isinstance(error, SystemExit):
            raise
        return end_of(error, debug=settings["debug"])
    return ended if isinstance(ended, int) else 0
