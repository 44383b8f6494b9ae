"""Between `TensorBlob` (host bytes, as they cross the ports) and torch tensors; checks what strangers sent.

Owns dtype names and the check of dtype, shape and size. int8 is the exchange's codec of that name (blocks of 256 with a
power-of-two scale). Must not know what a tensor means.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from noloco_node.core.codec_sizes import encoded_bytes
from noloco_node.errors import RemoteProtocolError
from noloco_node.ports import Bytes, TensorBlob
from noloco_node.training.codec import NOTHING, value_codec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int32": torch.int32}
BLOCKS = "int8"


def to_blob(tensor: Tensor, dtype: str) -> TensorBlob:
    """Host bytes of `tensor` in `dtype`; a view of its memory where it lies on the CPU in that dtype already.

    Raises FloatingPointError for int8 when it is not finite.
    """
    if dtype == BLOCKS:
        return TensorBlob(dtype, tuple(tensor.shape), host_bytes(_in_blocks(tensor.detach().float().reshape(-1))))
    host = tensor.detach().to(device="cpu", dtype=DTYPES[dtype]).contiguous()
    return TensorBlob(dtype, tuple(host.shape), host_bytes(host))


def _in_blocks(values: Tensor) -> Tensor:
    """Encoded where the values lie, so that one byte each crosses to the host."""
    codec = value_codec(BLOCKS)
    encoded = torch.empty(codec.encoded_bytes(values.numel()), dtype=torch.uint8)
    codec.encode(values, NOTHING, encoded)
    return encoded


def host_bytes(host: Tensor) -> memoryview:
    """Read-only bytes of a contiguous CPU tensor, without a copy; they keep the tensor's memory alive."""
    return memoryview(host.reshape(-1).view(torch.uint8).numpy()).toreadonly()


def check_blob(blob: TensorBlob, dtype: str, shape: tuple[int, ...], what: str) -> None:
    """Raises RemoteProtocolError unless `blob` has this dtype, shape and exactly the bytes they take."""
    if blob.dtype != dtype:
        raise RemoteProtocolError(f"{what} has dtype {blob.dtype}, expected {dtype}")
    if tuple(blob.shape) != shape:
        raise RemoteProtocolError(f"{what} has shape {tuple(blob.shape)}, expected {shape}")
    count = prod(shape)
    expected = encoded_bytes(BLOCKS, count) if dtype == BLOCKS else count * DTYPES[dtype].itemsize
    if memoryview(blob.data).nbytes != expected:
        raise RemoteProtocolError(f"{what} has {memoryview(blob.data).nbytes} bytes, expected {expected}")


def to_tensor(blob: TensorBlob, device: torch.device) -> Tensor:
    """The tensor of a checked blob on `device`; on the CPU it shares memory that is writable, else it is a copy.

    int8 comes back as float32. Raises RemoteProtocolError for one whose scales nobody sends.
    """
    if blob.dtype == BLOCKS:
        encoded = flat_tensor(blob.data, torch.uint8).to(device)
        return value_codec(BLOCKS).decode(encoded, prod(blob.shape)).view(blob.shape)
    return flat_tensor(blob.data, DTYPES[blob.dtype]).view(blob.shape).to(device)


def flat_tensor(data: Bytes, dtype: torch.dtype) -> Tensor:
    """One-dimensional CPU tensor over `data`; torch may not hold read-only memory, so that is copied."""
    view = memoryview(data)
    if view.readonly:
        return torch.from_numpy(np.frombuffer(view, dtype=np.uint8).copy()).view(dtype)
    return torch.frombuffer(view, dtype=dtype)


def int_array(blob: TensorBlob) -> np.ndarray:
    """A checked int32 blob as an array, for checks on the host."""
    return np.frombuffer(blob.data, dtype=np.int32).reshape(blob.shape)
