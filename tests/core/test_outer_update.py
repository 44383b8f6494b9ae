"""The outer update on the kinds of value it meets. The equations themselves are checked in tests/paper."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from noloco_node.core import outer_update as outer
from noloco_node.core.outer_update import Coefficients

FLOAT = Coefficients(0.5, 0.7, 0.7)


def test_tensors_keep_their_dtype_and_inputs_are_untouched() -> None:
    phi, gradient, momentum = torch.randn(3, 5), torch.randn(3, 5), torch.randn(3, 5)
    before = phi.clone(), gradient.clone(), momentum.clone()
    x = outer.exchanged(gradient, phi, FLOAT)
    stepped = outer.local_step(momentum, gradient, phi, FLOAT)
    assert all(tensor.dtype is torch.float32 for tensor in (x, *stepped, outer.correction(x, x, FLOAT)))
    assert all(torch.equal(a, b) for a, b in zip(before, (phi, gradient, momentum), strict=True))


def test_fractions_stay_fractions() -> None:
    c = Coefficients(Fraction(1, 2), Fraction(7, 10), Fraction(7, 10), half=Fraction(1, 2))
    momentum, phi = outer.local_step(Fraction(1), Fraction(2), Fraction(3), c)
    assert (momentum, phi) == (Fraction(19, 10), Fraction(49, 10))
    assert outer.correction(Fraction(1), Fraction(4), c) == Fraction(3, 2)


def test_bounds_of_gamma() -> None:
    assert outer.gamma_bound(0.5) == 1.0
    assert outer.gamma_bound(0.9) == pytest.approx(0.2)
    assert outer.paired_gamma_bound(0.5, 10**9) == pytest.approx(1.5)
    assert outer.paired_gamma_bound(0.9, 8) == pytest.approx(0.436, abs=1e-3)
    assert outer.paired_gamma_bound(0.5, 2) == pytest.approx(3.0)
    assert outer.paired_gamma_bound(0.5, 1) == math.inf
