"""Slow weights and momentum of one stage, and the outer step on them (DESIGN section 2, paper section 3.2).

Owns phi and delta (float32, flat, one element per parameter element in name order) and, per open outer step, the
frozen x and the correction c. Changes the fast weights theta only at a boundary and when a correction is added. Must
not know who the partner is or how bytes travel.

At the boundary the local step (group size 1) is taken at once; the partner's part comes later as c = (x_b - x_a) / 2,
of opposite sign on the two sides bit for bit: both subtract the same float32 numbers as sent, element by element.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from noloco_node.core import outer_update
from noloco_node.core.outer_update import Coefficients
from noloco_node.errors import LocalProtocolError
from noloco_node.ports import Boundary, Verdict
from noloco_node.training.initialisation import shape_hash
from noloco_node.training.norm_gauge import NormGauge
from noloco_node.training.stage import Stage
from noloco_node.training.tensors import flat_tensor, host_bytes

FLOAT_BYTES = 4


@dataclass(slots=True)
class OpenExchange:
    """x of one outer step (flat, host) and, once the partner's tensor is verified, c (flat, device)."""

    exchanged: Tensor
    correction: Tensor | None = None


class OuterState:
    """phi, delta and open exchanges of a materialised stage."""

    def __init__(self, stage: Stage, coefficients: Coefficients) -> None:
        self._coefficients = coefficients
        self._gauge = NormGauge()
        self._open: dict[int, OpenExchange] = {}
        self._parameters = dict(sorted(stage.named_parameters()))
        self._slices = _slices(self._parameters)
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
    def take_boundary(self, outer_step: int) -> Boundary:
        """Freeze x = beta*Delta + gamma*phi, then step locally: delta, phi and theta <- phi."""
        frozen = torch.empty(self.size)
        for name, theta in self._parameters.items():
            phi, delta = self._view(self._slow, name), self._view(self._momentum, name)
            outer_gradient = theta - phi
            self._view(frozen, name).copy_(outer_update.exchanged(outer_gradient, phi, self._coefficients))
            stepped_delta, stepped_phi = outer_update.local_step(delta, outer_gradient, phi, self._coefficients)
            delta.copy_(stepped_delta)
            phi.copy_(stepped_phi)
            theta.copy_(phi)
        self._open[outer_step] = OpenExchange(frozen)
        encoded = host_bytes(frozen)
        return Boundary(encoded, hashlib.blake2b(encoded, digest_size=32).digest(), self.shape_hash)

    @torch.no_grad()
    def verify(self, outer_step: int, tensor: memoryview) -> Verdict:
        """Judge the partner's x: size, finite, norm of c in range. When fine, c is kept for `add_correction`.

        `spread` = rms(x_b - x_a) / gamma: with gamma = beta the distance of the partners' *fast* weights at this
        boundary, else of the same mix of slow and fast weights that x holds.
        """
        exchange = self._open.get(outer_step)
        if exchange is None:
            return Verdict(f"nothing is kept for outer step {outer_step}", math.nan, math.nan)
        if tensor.nbytes != self.tensor_bytes:
            return Verdict(f"tensor has {tensor.nbytes} bytes, expected {self.tensor_bytes}", math.nan, math.nan)
        partner = flat_tensor(tensor, torch.float32)
        if not all(bool(torch.isfinite(partner[part]).all()) for part in self._slices.values()):
            return Verdict("tensor is not finite", math.nan, math.nan)
        correction = self._correction(exchange.exchanged, partner)
        norm = float(torch.linalg.vector_norm(correction, dtype=torch.float64))
        reason = self._gauge.judge(norm)
        if not reason:
            exchange.correction = correction
        return Verdict(reason, norm, self._spread(norm))

    @torch.no_grad()
    def add_correction(self, outer_step: int) -> None:
        """delta, phi and theta += c of that step. Raises LocalProtocolError when there is none."""
        exchange = self._open.get(outer_step)
        if exchange is None or exchange.correction is None:
            raise LocalProtocolError(f"no correction is kept for outer step {outer_step}")
        for name, theta in self._parameters.items():
            c = self._view(exchange.correction, name)
            for value in (self._view(self._momentum, name), self._view(self._slow, name), theta):
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

    def _correction(self, own: Tensor, partner: Tensor) -> Tensor:
        correction = torch.empty_like(self._slow)
        for part in self._slices.values():
            correction[part] = outer_update.correction(own[part], partner[part], self._coefficients)
        return correction

    def _spread(self, norm: float) -> float:
        return 2 * norm / math.sqrt(self.size) / self._coefficients.gamma

    def _view(self, flat: Tensor, name: str) -> Tensor:
        return flat[self._slices[name]].view(self._parameters[name].shape)


def _slices(parameters: dict[str, nn.Parameter]) -> dict[str, slice]:
    return dict(_walk(parameters))


def _walk(parameters: dict[str, nn.Parameter]) -> Iterator[tuple[str, slice]]:
    start = 0
    for name, parameter in parameters.items():
        yield name, slice(start, start + parameter.numel())
        start += parameter.numel()
