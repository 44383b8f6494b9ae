"""docs/exit-codes.md, made from errors.ExitCode: `python -m noloco_node.cli.exit_codes > docs/exit-codes.md`."""

from __future__ import annotations

from noloco_node.errors import ExitCode

MEANINGS = {
    ExitCode.OK: "The command, or the run, did what it was asked.",
    ExitCode.INTERNAL: "A fault of the program itself; the traceback is in the log, or run with `--debug`.",
    ExitCode.USAGE: "The command line is wrong; `--help` shows how it goes.",
    ExitCode.BAD_SPEC: "The run spec (`swarm.toml`) cannot be read, or what it asks for is impossible.",
    ExitCode.BAD_CONFIG: "A flag, a `NOLOCO_` variable or a key of `node.toml` is unknown or has an impossible value.",
    ExitCode.BAD_IDENTITY: "The key file is missing, unreadable, or is no ed25519 key.",
    ExitCode.IDENTITY_IN_USE: "Another process uses the same key.",
    ExitCode.PORT_IN_USE: "A port to listen on is taken.",
    ExitCode.BAD_DATA: "The data source or tokenizer is missing, unreadable or empty.",
    ExitCode.BAD_MODEL: "The model cannot be built from its config, or cannot be cut into the stages.",
    ExitCode.VERSION_MISMATCH: "The run or its peers speak another protocol version: update the older side.",
    ExitCode.WRONG_RUN: "The peers or the checkpoint belong to another run: compare the run specs.",
    ExitCode.P2PD_FAILED: "The libp2p daemon cannot be started or keeps dying.",
    ExitCode.NO_SEAT: "The wanted seat is held by another node.",
    ExitCode.BAD_CHECKPOINT: "No complete checkpoint was found where one is needed.",
    ExitCode.DEVICE: "The device is missing, out of memory, or cannot do what was asked of it.",
    ExitCode.DISK: "The data directory cannot be written, or the disk is full.",
    ExitCode.TARGET_MISSED: "The run ended, but did not reach what it was asked for.",
    ExitCode.SWARM_UNREACHABLE: "The command needed a running node or swarm, and none answered.",
    ExitCode.TRAINING_STALLED: "The training thread made no progress.",
    ExitCode.BAD_SIGNATURE: "The run spec or the list of peers is not signed by the owner that the run spec names.",
    ExitCode.NOT_ADMITTED: "The owner's list of peers excludes this node.",
    ExitCode.CLOCK_OFF: "This machine's clock differs from its peers' by more than the run bears: set the clock.",
    ExitCode.INTERRUPTED: (
        "Interrupted: a second signal, Ctrl-C in a short command, or the grace time of a stop ended before the "
        "checkpoint was on disk."
    ),
}
HEAD = """# Exit codes of noloco-node

Each fault also prints two lines on stderr: `error:` what is wrong, and `advice:` what to do. The numbers keep their
meaning from version to version. This page is generated from `noloco_node/errors.py`.

| code | name | meaning |
|---:|---|---|
"""


def exit_codes_page() -> str:
    return HEAD + "".join(f"| {int(code)} | {code.name} | {MEANINGS[code]} |\n" for code in ExitCode)


if __name__ == "__main__":
    print(exit_codes_page(), end="")
