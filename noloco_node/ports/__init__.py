"""The borders between the driver and the parts that touch the world.

training, transport, discovery and telemetry each implement their port and import none of one another; the driver
sees ports only; `node.py` plugs them together. Tensors cross as `TensorBlob`: host bytes with dtype and shape.
"""

from noloco_node.ports.discovery import Discovery
from noloco_node.ports.telemetry import Observer
from noloco_node.ports.tensors import Bytes, HopAnswer, MicroBatch, TensorBlob, TensorSource
from noloco_node.ports.training import Boundary, ForwardResult, LoadedState, StepResult, Trainer, Verdict
from noloco_node.ports.transport import (
    DENIED,
    EXCLUSIONS,
    NOT_ALLOWED,
    ClockBook,
    ExchangeHandler,
    ExchangeHub,
    FetchedState,
    Gatekeeper,
    HopHeader,
    PeerNetwork,
    PeerStreams,
    PipelineHandler,
    StateFile,
    StateHandler,
    StateParts,
)

__all__ = [
    "DENIED",
    "EXCLUSIONS",
    "NOT_ALLOWED",
    "Boundary",
    "Bytes",
    "ClockBook",
    "Discovery",
    "ExchangeHandler",
    "ExchangeHub",
    "FetchedState",
    "ForwardResult",
    "Gatekeeper",
    "HopAnswer",
    "HopHeader",
    "LoadedState",
    "MicroBatch",
    "Observer",
    "PeerNetwork",
    "PeerStreams",
    "PipelineHandler",
    "StateFile",
    "StateHandler",
    "StateParts",
    "StepResult",
    "TensorBlob",
    "TensorSource",
    "Trainer",
    "Verdict",
]
