"""Every way to fail that a person can meet: one class, one exit code, one line of cause, one of advice.

Owns the exit codes (documented in docs/exit-codes.md, checked by a test). Must not import anything of the project.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of `noloco-node`; stable across versions."""

    OK = 0
    INTERNAL = 1  # a fault of ours; the traceback is in the log
    USAGE = 2  # the command line is off (click's own code)
    BAD_SPEC = 10  # the run spec cannot be read or is impossible
    BAD_CONFIG = 11  # node configuration: flag, NOLOCO_ variable or file
    BAD_IDENTITY = 12  # the key file is unreadable or garbage
    IDENTITY_IN_USE = 13  # another process holds the same key
    PORT_IN_USE = 14
    BAD_DATA = 15  # the data source is missing or empty
    BAD_MODEL = 16  # the model config cannot be built or cut
    VERSION_MISMATCH = 17  # the swarm speaks another protocol version
    WRONG_RUN = 18  # peers or checkpoint belong to another run
    P2PD_FAILED = 19  # the libp2p daemon cannot be started
    NO_SEAT = 20  # the wanted seat is taken and waiting was not asked for
    BAD_CHECKPOINT = 21  # no complete checkpoint where one is needed
    DEVICE = 22  # device missing, out of memory, or without what was asked of it
    DISK = 23  # the data directory cannot be written or is full
    TARGET_MISSED = 24  # the run ended, but did not do what it was asked
    SWARM_UNREACHABLE = 25  # a command needed the live swarm and found no peer
    TRAINING_STALLED = 26  # the training thread made no progress
    BAD_SIGNATURE = 27  # the run spec or the list of peers is not signed by the run's owner
    NOT_ADMITTED = 28  # the owner's list of peers excludes this node
    CLOCK_OFF = 29  # this machine's clock is further off the peers' than the run bears
    INTERRUPTED = 130  # second signal: ended at once


class NolocoError(Exception):
    """A fault with words for a person. `cause` says what is wrong, `advice` what to do."""

    code: ExitCode = ExitCode.INTERNAL

    def __init__(self, cause: str, advice: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.advice = advice


class BadSpec(NolocoError):
    code = ExitCode.BAD_SPEC


class BadConfig(NolocoError):
    code = ExitCode.BAD_CONFIG


class BadIdentity(NolocoError):
    code = ExitCode.BAD_IDENTITY


class IdentityInUse(NolocoError):
    code = ExitCode.IDENTITY_IN_USE


class PortInUse(NolocoError):
    code = ExitCode.PORT_IN_USE


class BadData(NolocoError):
    code = ExitCode.BAD_DATA


class BadModel(NolocoError):
    code = ExitCode.BAD_MODEL


class VersionMismatch(NolocoError):
    code = ExitCode.VERSION_MISMATCH


class WrongRun(NolocoError):
    code = ExitCode.WRONG_RUN


class DaemonFailed(NolocoError):
    code = ExitCode.P2PD_FAILED


class NoSeat(NolocoError):
    code = ExitCode.NO_SEAT


class BadCheckpoint(NolocoError):
    code = ExitCode.BAD_CHECKPOINT


class DeviceFailed(NolocoError):
    code = ExitCode.DEVICE


class DiskFailed(NolocoError):
    code = ExitCode.DISK


class TargetMissed(NolocoError):
    code = ExitCode.TARGET_MISSED


class SwarmUnreachable(NolocoError):
    code = ExitCode.SWARM_UNREACHABLE


class TrainingStalled(NolocoError):
    code = ExitCode.TRAINING_STALLED


class BadSignature(NolocoError):
    code = ExitCode.BAD_SIGNATURE


class NotAdmitted(NolocoError):
    code = ExitCode.NOT_ADMITTED


class ClockOff(NolocoError):
    code = ExitCode.CLOCK_OFF


class LocalProtocolError(Exception):
    """Our own side broke a protocol rule: a bug here."""


class RemoteProtocolError(Exception):
    """A peer broke a protocol rule: its bytes are refused, counted, and training goes on."""


class RecordOutOfTime(RemoteProtocolError):
    """A record that is right but for its times: a suspended node, or one whose clock is off. Refused, no strike."""


class PeerLost(Exception):
    """The peer or the link to it is gone (INTERNAL, UNAVAILABLE, CANCELLED, a stall): never fatal."""


class PeerRefused(PeerLost):
    """The peer answers but does not serve us; `reason` is its own word for it."""

    def __init__(self, words: str, reason: str) -> None:
        super().__init__(words)
        self.reason = reason


class TensorReleased(Exception):
    """The outer step closed: nothing of its tensor is kept."""


class HopBusy(Exception):
    """The next stage's replica has no place for this micro-batch now."""


class HopDropped(Exception):
    """The next stage's replica gave the micro-batch up."""
