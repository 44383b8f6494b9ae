"""TensorBlob <-> wire header, and the shapes a hop may have.

Owns the fixed set of dtypes and every check of an announced shape before memory is reserved for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from noloco_node.core import limits
from noloco_node.core.codec_sizes import encoded_bytes
from noloco_node.core.types import MicroBatchId
from noloco_node.errors import LocalProtocolError, RemoteProtocolError
from noloco_node.ports import HopHeader, MicroBatch, TensorBlob
from noloco_node.transport.framing import byte_view
from noloco_node.wire import pipeline_pb2, transfer_pb2

DTYPES = {
    "float32": transfer_pb2.DTYPE_FLOAT32,
    "bfloat16": transfer_pb2.DTYPE_BFLOAT16,
    "int32": transfer_pb2.DTYPE_INT32,
    "int8": transfer_pb2.DTYPE_INT8,
}
NAMES = {number: name for name, number in DTYPES.items()}
INT32_BYTES = 4
FLOATS = ("float32", "bfloat16", "int8")  # what activations and gradients travel as


def encode_tensor(blob: TensorBlob) -> transfer_pb2.Tensor:
    """Header of `blob`. Raises LocalProtocolError when its bytes do not fit its shape."""
    if blob.dtype not in DTYPES:
        raise LocalProtocolError(f"dtype {blob.dtype} does not travel")
    if byte_view(blob.data).nbytes != size_of(blob.dtype, blob.shape):
        raise LocalProtocolError(f"{byte_view(blob.data).nbytes} bytes for {blob.dtype} {blob.shape}")
    return transfer_pb2.Tensor(dtype=DTYPES[blob.dtype], shape=blob.shape)


def decode_tensor(header: transfer_pb2.Tensor) -> tuple[str, tuple[int, ...]]:
    """(dtype, shape) of a peer's header, within the limits. Raises RemoteProtocolError."""
    dtype, shape = NAMES.get(header.dtype), tuple(header.shape)
    if dtype is None:
        raise RemoteProtocolError(f"unknown dtype {header.dtype}")
    if not 1 <= len(shape) <= limits.TENSOR_DIMENSIONS_MAX or min(shape) < 1:
        raise RemoteProtocolError(f"impossible shape of {len(shape)} dimensions")
    if size_of(dtype, shape) > limits.TENSOR_BYTES_MAX:
        raise RemoteProtocolError("a tensor beyond any limit")
    return dtype, shape


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; float ones are laid out as the exchange's codecs of these names are."""
    return encoded_bytes(dtype, prod(shape)) if dtype in FLOATS else INT32_BYTES * prod(shape)


def encode_hop(batch: MicroBatch) -> pipeline_pb2.HopHeader:
    return pipeline_pb2.HopHeader(
        origin=batch.id.origin,
        n=batch.id.n,
        position=batch.position,
        inputs=encode_tensor(batch.inputs),
        position_ids=encode_tensor(batch.position_ids),
        labels=encode_tensor(batch.labels),
    )


class HopShape:
    """A checked hop header: how many bytes follow, and how to make the micro-batch of them."""

    def __init__(self, header: pipeline_pb2.HopHeader) -> None:
        self._header = header
        self._tensors = [decode_tensor(part) for part in (header.inputs, header.position_ids, header.labels)]
        (dtype, inputs), position_ids, labels = self._tensors
        if position_ids != labels or labels[0] != "int32" or len(labels[1]) != 2:
            raise RemoteProtocolError("position_ids and labels must be int32 (B, T)")
        if inputs[:2] != labels[1] or len(inputs) != 3 or dtype not in FLOATS:
            raise RemoteProtocolError("inputs must be an activation (B, T, D)")
        self._sizes = [size_of(*tensor) for tensor in self._tensors]

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes)

    def announced(self) -> HopHeader:
        (dtype, shape), header = self._tensors[0], self._header
        return HopHeader(MicroBatchId(header.origin, header.n), header.position, dtype, shape)

    def micro_batch(self, data: memoryview) -> MicroBatch:
        """Views into `data`, not copies."""
        blobs, start = [], 0
        for (dtype, shape), size in zip(self._tensors, self._sizes, strict=True):
            blobs.append(TensorBlob(dtype, shape, data[start : start + size]))
            start += size
        header = self._header
        return MicroBatch(MicroBatchId(header.origin, header.n), header.position, *blobs)
