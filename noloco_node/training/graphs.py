"""Forward and backward of micro-batches through one stage, each kept by the driver's call handle.

Owns autograd graphs between forward and backward and the inputs that a late gradient needs again. Gradients of the
parameters add up in `.grad` (float32), in the order of the backward jobs. What goes into a backward is checked before
the sums are touched. What comes out of it is known only when they are: a gradient by the input that is not finite
spoils the sums, and the open step must be skipped (`take_spoilt`). Must not know peers, steps or optimizers.

Shapes: B rows, T tokens, D hidden size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from noloco_node.errors import LocalProtocolError, RemoteProtocolError
from noloco_node.ports import ForwardResult, MicroBatch, TensorBlob
from noloco_node.training.codec import VALUE_MAX
from noloco_node.training.stage import IGNORED_LABEL, Stage, loss_sum
from noloco_node.training.tensors import BLOCKS, check_blob, int_array, to_blob, to_tensor


@dataclass(slots=True)
class OpenCall:
    """`source` is the stage's input as a leaf, `output` the activation; both None while no graph is kept."""

    batch: MicroBatch
    source: Tensor | None = None
    output: Tensor | None = None


class MicroBatchGraphs:
    """All micro-batches that this replica has in hand.

    `rows` x `tokens` is the shape the run spec gives every micro-batch; `wire_dtype` that of activations and
    gradients between stages.
    """

    def __init__(self, stage: Stage, *, rows: int, tokens: int, wire_dtype: str, autocast: bool) -> None:
        self._stage = stage
        self._shape = (rows, tokens)
        self._wire_dtype = wire_dtype
        self._device = next(stage.parameters()).device
        self._autocast = autocast and self._device.type == "cuda" and torch.cuda.is_bf16_supported()
        self._calls: dict[int, OpenCall] = {}
        self._is_spoilt = False

    def __len__(self) -> int:
        return len(self._calls)

    def forward(self, call: int, batch: MicroBatch, *, count: bool) -> ForwardResult:
        """Activation for the next stage; on the last stage loss and backward as well. Raises RemoteProtocolError."""
        self._check(batch)
        kept = OpenCall(batch)
        if not self._stage.is_last:
            self._run(kept)
            self._calls[call] = kept
            if not self._can_be_sent(kept.output):
                return ForwardResult(False)
            return ForwardResult(True, to_blob(kept.output, self._wire_dtype))
        self._calls[call] = kept
        return self._train_last(kept, count)

    def backward(self, call: int, gradient: TensorBlob, *, count: bool, recompute: bool) -> TensorBlob | None:
        """Gradient by the stage's input, None on the first stage. `count` False leaves the parameters' sums alone.

        Raises FloatingPointError when the incoming gradient is not finite (the sums are untouched) or the resulting
        one (a counted one has spoilt the sums), RemoteProtocolError when its shape is wrong.
        """
        kept = self._kept(call)
        check_blob(gradient, self._wire_dtype, (*self._shape, self._stage.config.hidden_size), "gradient")
        incoming = to_tensor(gradient, self._device)
        if not _is_finite(incoming):
            raise FloatingPointError("incoming gradient is not finite")
        if recompute:
            self._run(kept)
        if kept.output is None:
            raise LocalProtocolError(f"call {call} has no graph to go backward through")
        incoming = incoming.to(kept.output.dtype)
        if not _is_finite(incoming):  # too large for the dtype of the graph
            raise FloatingPointError("incoming gradient is not finite")
        result = self._pull(kept, incoming, count)
        if result is None:
            return None
        if not self._judge(result, count):
            raise FloatingPointError("gradient by the input is not finite")
        return to_blob(result, self._wire_dtype)

    def take_spoilt(self) -> bool:
        """Whether the sums hold what was not counted. Asked once, when the step is closed."""
        spoilt, self._is_spoilt = self._is_spoilt, False
        return spoilt

    def drop_graph(self, call: int) -> None:
        """Late: free the graph, keep the input."""
        kept = self._kept(call)
        kept.source = kept.output = None

    def forget(self, call: int) -> None:
        self._calls.pop(call, None)

    def forget_all(self) -> None:
        self._calls.clear()
        self._is_spoilt = False

    def _kept(self, call: int) -> OpenCall:
        if call not in self._calls:
            raise LocalProtocolError(f"call {call} is unknown to the trainer")
        return self._calls[call]

    def _run(self, kept: OpenCall) -> None:
        source = to_tensor(kept.batch.inputs, self._device)
        if not self._stage.is_first:
            source = source.float().requires_grad_()
        position_ids = to_tensor(kept.batch.position_ids, self._device).long()
        with self._precision():
            kept.source, kept.output = source, self._stage(source, position_ids)

    def _train_last(self, kept: OpenCall, count: bool) -> ForwardResult:
        """Forward, loss and backward in one job; nothing is kept of the graph."""
        self._run(kept)
        loss = loss_sum(kept.output, to_tensor(kept.batch.labels, self._device).long())
        value = float(loss.detach())
        kept.output = loss
        if not _is_finite(loss.detach()):
            kept.source = kept.output = None
            return ForwardResult(False, loss_sum=value)
        result = self._pull(kept, None, count)
        if result is None:
            return ForwardResult(True, loss_sum=value)
        if not self._judge(result, count):
            return ForwardResult(False, loss_sum=value)
        return ForwardResult(True, loss_sum=value, gradient=to_blob(result, self._wire_dtype))

    def _pull(self, kept: OpenCall, incoming: Tensor | None, count: bool) -> Tensor | None:
        """Backward through the kept graph, which is freed."""
        source, output = kept.source, kept.output
        kept.source = kept.output = None
        if count:
            torch.autograd.backward(output, incoming)
            return source.grad if not self._stage.is_first else None
        if self._stage.is_first:
            return None
        return torch.autograd.grad(output, source, incoming)[0]

    def _judge(self, result: Tensor, count: bool) -> bool:
        """Whether the gradient by the input can be sent; if not, what was counted with it has spoilt the sums."""
        finite = self._can_be_sent(result)
        self._is_spoilt |= count and not finite
        return finite

    def _can_be_sent(self, tensor: Tensor) -> bool:
        """Finite, and within what the wire's code takes."""
        if self._wire_dtype == BLOCKS:
            return bool((tensor.detach().abs() <= VALUE_MAX).all())
        return _is_finite(tensor)

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cuda", torch.bfloat16) if self._autocast else nullcontext()

    def _check(self, batch: MicroBatch) -> None:
        """Refuse what does not fit the run before any of it reaches the device."""
        rows, tokens = self._shape
        config = self._stage.config
        if self._stage.is_first:
            check_blob(batch.inputs, "int32", self._shape, "token ids")
            _check_range(batch.inputs, 0, config.vocab_size, "token ids")
        else:
            check_blob(batch.inputs, self._wire_dtype, (rows, tokens, config.hidden_size), "activation")
        check_blob(batch.position_ids, "int32", self._shape, "position ids")
        _check_range(batch.position_ids, 0, tokens, "position ids")
        check_blob(batch.labels, "int32", self._shape, "labels")
        _check_range(batch.labels, 0, config.vocab_size, "labels", also=IGNORED_LABEL)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _check_range(blob: TensorBlob, low: int, high: int, what: str, also: int | None = None) -> None:
    values = int_array(blob)
    outside = (values < low) | (values >= high)
    if also is not None:
        outside &= values != also
    if outside.any():
        raise RemoteProtocolError(f"{what} hold values outside {low}..{high - 1}")
