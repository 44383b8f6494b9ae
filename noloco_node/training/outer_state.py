"""Slow weights and momentum of one stage, and the outer step on them (DESIGN section 2, paper section 3.2).

Owns phi and delta (float32, flat, one element per parameter element in name order) and, per open outer step, the
frozen x of its fragment and the correction c. Changes the fast weights theta only at a boundary and when a correction
is added. Outer step k works on fragment k mod F; all else in the stage is left alone. Must not know who the partner is
or how bytes travel. `source`, `meet` and `verify` touch only what was frozen: they may run beside the device's jobs.

In mode prefetch x travels as two parts, phi and Delta; phi may be frozen before the boundary (`prefetch_tensor`).

At the boundary the local step (group size 1) is taken at once; the partner's part comes later as c = (x_b - x_a) / 2,
of opposite sign on the two sides bit for bit: both subtract the same float32 numbers as sent, element by element.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from noloco_node.core import limits, outer_update
from noloco_node.core.outer_update import Coefficients
from noloco_node.core.seed import key64
from noloco_node.errors import LocalProtocolError, RemoteProtocolError, TensorReleased
from noloco_node.ports import Boundary, Verdict
from noloco_node.training.codec import Codec, codec
from noloco_node.training.exchange_tensor import ExchangeTensor
from noloco_node.training.fragments import Fragment, Piece, cut, parameter_slices
from noloco_node.training.initialisation import shape_hash
from noloco_node.training.norm_gauge import NormGauge
from noloco_node.training.prefetch_tensor import PrefetchTensor
from noloco_node.training.stage import Stage

FLOAT_BYTES = 4
NORM_VALUES = 1 << 20
Tensors = ExchangeTensor | PrefetchTensor


@dataclass(frozen=True, slots=True)
class ExchangeWay:
    """How x travels: into how many fragments the stage is cut, which codec, the run seed that codecs draw from, and
    whether phi goes ahead of Delta (then there is one fragment)."""

    fragments: int = 1
    codec: str = "float32"
    seed: int = 0
    prefetch: bool = False

    def codec_of(self, outer_step: int) -> Codec:
        """Both partners draw alike."""
        return codec(self.codec, key64(self.seed, "codec", outer_step))


PLAIN = ExchangeWay()


@dataclass(slots=True)
class OpenExchange:
    """x of one outer step and, once the partner's tensor is verified, c (flat, host), both of one fragment."""

    fragment: Fragment
    tensor: Tensors
    tensor_id: bytes
    correction: Tensor | None = None


class OuterState:
    """phi, delta and open exchanges of a materialised stage."""

    def __init__(self, stage: Stage, coefficients: Coefficients, way: ExchangeWay = PLAIN) -> None:
        self._coefficients = coefficients
        self._way = way
        self._open: dict[int, OpenExchange] = {}
        self._parameters = dict(sorted(stage.named_parameters()))
        self._slices = parameter_slices(self._parameters)
        self._fragments = cut(self._slices, way.fragments)
        self._gauge = NormGauge()
        self.shape_hash = shape_hash(stage)
        device = next(stage.parameters()).device
        self._slow = torch.zeros(self.size, device=device)
        self._momentum = torch.zeros(self.size, device=device)

    @property
    def size(self) -> int:
        """Parameters of the stage."""
        return sum(parameter.numel() for parameter in self._parameters.values())

    @property
    def tensor_bytes(self) -> int:
        return self.size * FLOAT_BYTES

    def slow_weights(self) -> dict[str, Tensor]:
        """phi by parameter name: views, shaped like the parameters."""
        return {name: self._view(self._slow, name) for name in self._parameters}

    def momentum(self) -> dict[str, Tensor]:
        """delta by parameter name: views, shaped like the parameters."""
        return {name: self._view(self._momentum, name) for name in self._parameters}

    @torch.no_grad()
    def start(self) -> None:
        """phi <- theta, delta <- 0: at the very first step, where all replicas of the stage hold the same weights."""
        for name, theta in self._parameters.items():
            self._view(self._slow, name).copy_(theta)
        self._momentum.zero_()

    @torch.no_grad()
    def freeze_slow_weights(self, outer_step: int) -> Boundary:
        """Mode prefetch: copy phi, which must not change before that step's boundary. Done already: nothing happens."""
        if outer_step not in self._open:
            frozen = torch.empty(self.size, pin_memory=self._slow.is_cuda)
            frozen.copy_(self._slow)
            tensor = PrefetchTensor(self._way.codec_of(outer_step), frozen, self._coefficients)
            self._keep(outer_step, self._fragments[0], tensor)
        return self._told(outer_step)

    @torch.no_grad()
    def take_boundary(self, outer_step: int) -> Boundary:
        """Freeze x = beta*Delta + gamma*phi of the step's fragment (mode prefetch: Delta, and phi if that is not yet),
        then step locally: delta, phi and theta <- phi."""
        if self._way.prefetch:
            self.freeze_slow_weights(outer_step)
        fragment = self._fragments[outer_step % len(self._fragments)]
        frozen = torch.empty(fragment.size, pin_memory=self._slow.is_cuda)
        for piece in fragment.pieces:
            theta = self._fast(piece)
            phi, delta = self._slow[piece.of_vector], self._momentum[piece.of_vector]
            outer_gradient = theta - phi
            frozen[piece.of_fragment].copy_(self._travels(outer_gradient, phi))
            stepped_delta, stepped_phi = outer_update.local_step(delta, outer_gradient, phi, self._coefficients)
            delta.copy_(stepped_delta)
            phi.copy_(stepped_phi)
            theta.copy_(phi)
        if self._way.prefetch:
            tensor = self._open[outer_step].tensor
            assert isinstance(tensor, PrefetchTensor)
            tensor.complete(frozen)
        else:
            self._keep(outer_step, fragment, ExchangeTensor(self._way.codec_of(outer_step), frozen))
        return self._told(outer_step)

    def _travels(self, outer_gradient: Tensor, phi: Tensor) -> Tensor:
        """What of the boundary's own is sent."""
        if self._way.prefetch:
            return outer_gradient
        return outer_update.exchanged(outer_gradient, phi, self._coefficients)

    def _keep(self, outer_step: int, fragment: Fragment, tensor: Tensors) -> None:
        self._open[outer_step] = OpenExchange(fragment, tensor, secrets.token_bytes(limits.DIGEST_BYTES))

    def _told(self, outer_step: int) -> Boundary:
        kept = self._open[outer_step]
        tensor = kept.tensor
        return Boundary(tensor.size_bytes, kept.tensor_id, self.shape_hash, tensor.head_bytes, tensor.is_finite)

    def tensor(self, outer_step: int) -> Tensors:
        """x of that step on its way. Raises TensorReleased when nothing of it is kept."""
        exchange = self._open.get(outer_step)
        if exchange is None:
            raise TensorReleased(f"outer step {outer_step}")
        return exchange.tensor

    @torch.no_grad()
    def verify(self, outer_step: int, tensor: memoryview) -> Verdict:
        """Judge the partner's x: size, finite, norm of c in range. When fine, c is kept for `add_correction`.

        `spread` = rms(x_b - x_a) / gamma: with gamma = beta the distance of the partners' *fast* weights at this
        boundary, else of the same mix of slow and fast weights that x holds.
        """
        exchange = self._open.get(outer_step)
        if exchange is None:
            return Verdict(f"nothing is kept for outer step {outer_step}", math.nan, math.nan)
        expected = exchange.tensor.size_bytes
        if tensor.nbytes != expected:
            return Verdict(f"tensor has {tensor.nbytes} bytes, expected {expected}", math.nan, math.nan)
        try:
            found = exchange.tensor.correction(tensor)
        except RemoteProtocolError as fault:
            return Verdict(str(fault), math.nan, math.nan)
        correction = found.values
        norm = _norm(correction)
        reason = found.fault or self._gauge.judge(norm / math.sqrt(correction.numel()))
        if not reason:
            exchange.correction = correction
        return Verdict(reason, norm, self._spread(norm, correction.numel()))

    @torch.no_grad()
    def add_correction(self, outer_step: int) -> None:
        """delta, phi and theta += c of that step. Raises LocalProtocolError when there is none."""
        exchange = self._open.get(outer_step)
        if exchange is None or exchange.correction is None:
            raise LocalProtocolError(f"no correction is kept for outer step {outer_step}")
        for piece in exchange.fragment.pieces:
            c = exchange.correction[piece.of_fragment].to(self._slow.device)
            for value in (self._momentum[piece.of_vector], self._slow[piece.of_vector], self._fast(piece)):
                value.copy_(outer_update.add(value, c))
        exchange.correction = None

    def drop_correction(self, outer_step: int) -> None:
        """Forget c of that step: it closes solo."""
        if outer_step in self._open:
            self._open[outer_step].correction = None

    def release(self, outer_step: int) -> None:
        """Forget x and c of that step."""
        self._open.pop(outer_step, None)

    def forget_exchanges(self) -> None:
        """Other weights were loaded: what was frozen of the old ones is void."""
        self._open.clear()
        self._gauge = NormGauge()

    def _spread(self, norm: float, values: int) -> float:
        return 2 * norm / math.sqrt(values) / self._coefficients.gamma

    def _fast(self, piece: Piece) -> Tensor:
        """The part of theta that lies in the piece: a flat view."""
        return self._parameters[piece.name].view(-1)[piece.of_parameter]

    def _view(self, flat: Tensor, name: str) -> Tensor:
        return flat[self._slices[name]].view(self._parameters[name].shape)


def _norm(values: Tensor) -> float:
    """Summed in float64, piece by piece: torch makes a float64 copy of what it is given."""
    return math.hypot(*(float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in values.split(NORM_VALUES)))
