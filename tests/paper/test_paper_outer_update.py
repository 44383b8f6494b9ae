"""NoLoCo (arXiv 2506.10911), section 3.2: the outer step.

    eq. 1   Delta_{t,i} = theta_{t+1,i} - phi_{t,i}
    eq. 2   delta_{t,i} = alpha delta_{t-1,i} + (beta/n) sum_j Delta_{t,j} - gamma (phi_{t,i} - (1/n) sum_j phi_{t,j})
    eq. 3   phi_{t+1,i} = phi_{t,i} + delta_{t,i}

Eq. 2 with the sign before beta that the appendix and the authors' code use; the printed minus is wrong.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from noloco_node.core import outer_update as outer
from noloco_node.core.outer_update import Coefficients

NUMBERS = st.fractions(min_value=-100, max_value=100, max_denominator=1000)
EXACT = Coefficients(Fraction(1, 2), Fraction(7, 10), Fraction(3, 5), half=Fraction(1, 2))
FLOAT = Coefficients(0.5, 0.7, 0.7)


@st.composite
def coefficients(draw: st.DrawFn) -> Coefficients:
    share = st.fractions(min_value=0, max_value=1, max_denominator=50)
    return Coefficients(draw(share), draw(share), draw(share), half=Fraction(1, 2))


@st.composite
def replicas(draw: st.DrawFn, size: int = 2) -> tuple[list[Fraction], list[Fraction], list[Fraction]]:
    """(theta, phi, delta) of a group."""
    values = st.lists(NUMBERS, min_size=size, max_size=size)
    return draw(values), draw(values), draw(values)


def outer_gradients(theta: list[Fraction], phi: list[Fraction]) -> list[Fraction]:
    """Eq. 1."""
    return [fast - slow for fast, slow in zip(theta, phi, strict=True)]


def as_printed_with_the_right_sign(
    own: int, delta: Fraction, gradients: list[Fraction], phi: list[Fraction], c: Coefficients
) -> tuple[Fraction, Fraction]:
    """Eq. 2 and 3, term by term."""
    n = len(phi)
    momentum = c.alpha * delta + c.beta * sum(gradients) / n - c.gamma * (phi[own] - sum(phi) / n)
    return momentum, phi[own] + momentum


def paired_step(
    own: int, delta: list[Fraction], gradients: list[Fraction], phi: list[Fraction], c: Coefficients
) -> tuple[Fraction, Fraction]:
    """What a node does: local step, then half of the difference of what the two sent."""
    xs = [outer.exchanged(gradient, slow, c) for gradient, slow in zip(gradients, phi, strict=True)]
    momentum, slow = outer.local_step(delta[own], gradients[own], phi[own], c)
    half_difference = outer.correction(xs[own], xs[1 - own], c)
    return outer.add(momentum, half_difference), outer.add(slow, half_difference)


@given(replicas(), coefficients(), st.integers(0, 1))
def test_local_step_plus_half_a_difference_is_equation_2_and_3(
    group: tuple[list[Fraction], list[Fraction], list[Fraction]], c: Coefficients, own: int
) -> None:
    theta, phi, delta = group
    gradients = outer_gradients(theta, phi)
    stated = as_printed_with_the_right_sign(own, delta[own], gradients, phi, c)
    assert paired_step(own, delta, gradients, phi, c) == stated
    assert outer.two_tensor_step(delta[own], gradients, phi, own, c) == stated
    xs = [outer.exchanged(gradient, slow, c) for gradient, slow in zip(gradients, phi, strict=True)]
    assert outer.group_step(delta[own], phi[own], xs, c) == stated


@given(replicas(2), coefficients())
def test_slow_weights_and_outer_gradients_that_travel_apart_give_the_same_correction(
    group: tuple[list[Fraction], list[Fraction], list[Fraction]], c: Coefficients
) -> None:
    """Mode prefetch: c_a = (gamma*(phi_b - phi_a) + beta*(Delta_b - Delta_a)) / 2."""
    theta, phi, _ = group
    gradients = outer_gradients(theta, phi)
    xs = [outer.exchanged(gradient, slow, c) for gradient, slow in zip(gradients, phi, strict=True)]
    for own, other in ((0, 1), (1, 0)):
        halves = [outer.correction(values[own], values[other], c) for values in (phi, gradients)]
        apart = outer.prefetched_correction(*halves, c)
        assert apart == (c.gamma * (phi[other] - phi[own]) + c.beta * (gradients[other] - gradients[own])) / 2
        assert apart == outer.correction(xs[own], xs[other], c)


@given(st.integers(1, 5), coefficients(), st.data())
def test_one_tensor_is_enough_for_groups_of_any_size(n: int, c: Coefficients, data: st.DataObject) -> None:
    theta, phi, delta = data.draw(replicas(n))
    gradients = outer_gradients(theta, phi)
    xs = [outer.exchanged(gradient, slow, c) for gradient, slow in zip(gradients, phi, strict=True)]
    for own in range(n):
        stated = as_printed_with_the_right_sign(own, delta[own], gradients, phi, c)
        assert outer.two_tensor_step(delta[own], gradients, phi, own, c) == stated
        assert outer.group_step(delta[own], phi[own], xs, c) == stated


@given(replicas(1), coefficients())
def test_a_replica_without_a_partner_takes_n_equal_one(
    group: tuple[list[Fraction], list[Fraction], list[Fraction]], c: Coefficients
) -> None:
    (theta,), (phi,), (delta,) = group
    momentum, slow = outer.local_step(delta, theta - phi, phi, c)
    assert momentum == c.alpha * delta + c.beta * (theta - phi)
    assert slow == phi + momentum
    assert (momentum, slow) == outer.two_tensor_step(delta, [theta - phi], [phi], 0, c)


@given(replicas(), NUMBERS, NUMBERS)
def test_a_pairs_sum_does_not_move_whatever_the_codec_did(
    group: tuple[list[Fraction], list[Fraction], list[Fraction]], noise_a: Fraction, noise_b: Fraction
) -> None:
    """x^ is what was sent: any perturbation of x, known to both sides, moves them by opposite amounts."""
    theta, phi, delta = group
    gradients = outer_gradients(theta, phi)
    sent = [
        outer.exchanged(gradient, slow, EXACT) + noise
        for gradient, slow, noise in zip(gradients, phi, (noise_a, noise_b), strict=True)
    ]
    local = [outer.local_step(delta[i], gradients[i], phi[i], EXACT) for i in (0, 1)]
    c = [outer.correction(sent[i], sent[1 - i], EXACT) for i in (0, 1)]
    mixed = [tuple(outer.add(value, c[i]) for value in local[i]) for i in (0, 1)]
    assert c[0] == -c[1]
    for part in (0, 1):  # momentum, slow weights
        assert mixed[0][part] + mixed[1][part] == local[0][part] + local[1][part]


@given(replicas(), coefficients())
def test_a_late_correction_ends_where_a_prompt_one_does(
    group: tuple[list[Fraction], list[Fraction], list[Fraction]], c: Coefficients
) -> None:
    """c is added to delta, phi and theta: inner progress made meanwhile is kept, and Delta does not change."""
    theta, phi, delta = group
    gradients = outer_gradients(theta, phi)
    momentum, slow = outer.local_step(delta[0], gradients[0], phi[0], c)
    progress = Fraction(3, 7)
    half_difference = outer.correction(
        outer.exchanged(gradients[0], phi[0], c), outer.exchanged(gradients[1], phi[1], c), c
    )
    late_phi, late_theta = outer.add(slow, half_difference), outer.add(slow + progress, half_difference)
    assert (late_phi - phi[0], late_theta - late_phi) == (momentum + half_difference, progress)


FLOATS = npst.arrays(
    np.float32, 16, elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_nan=False, allow_infinity=False)
)


@given(FLOATS, FLOATS)
def test_float32_corrections_of_the_two_sides_are_opposite_bit_for_bit(a: np.ndarray, b: np.ndarray) -> None:
    """IEEE subtraction is antisymmetric and halving is monotone; only a zero has the same sign on both sides."""
    one, other = outer.correction(a, b, FLOAT), outer.correction(b, a, FLOAT)
    assert one.dtype == np.float32
    assert np.array_equal(one, -other)
    moved = one != 0
    assert np.array_equal(one[moved].view(np.uint32), (-other[moved]).view(np.uint32))


@given(FLOATS, FLOATS)
def test_torch_and_numpy_compute_the_same_correction(a: np.ndarray, b: np.ndarray) -> None:
    from_torch = outer.correction(torch.from_numpy(a), torch.from_numpy(b), FLOAT)
    assert np.array_equal(from_torch.numpy().view(np.uint32), outer.correction(a, b, FLOAT).view(np.uint32))


def test_float32_forms_agree_to_rounding() -> None:
    generator = torch.Generator().manual_seed(1)
    theta, phi, delta = (torch.randn(2, 1000, generator=generator) for _ in range(3))
    gradients = theta - phi
    stated = outer.two_tensor_step(delta[0], list(gradients), list(phi), 0, FLOAT)
    xs = [outer.exchanged(gradients[i], phi[i], FLOAT) for i in (0, 1)]
    c = outer.correction(xs[0], xs[1], FLOAT)
    ran = tuple(outer.add(value, c) for value in outer.local_step(delta[0], gradients[0], phi[0], FLOAT))
    for mine, theirs in zip(ran, stated, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_printed_sign_walks_away_from_the_inner_progress() -> None:
    """With Delta as in eq. 1, a minus before beta takes the slow weights away from the fast ones."""
    phi, theta = Fraction(0), Fraction(1)
    _, ours = outer.local_step(Fraction(0), theta - phi, phi, EXACT)
    as_printed = phi - EXACT.beta * (theta - phi)
    assert abs(theta - ours) < abs(theta - phi) < abs(theta - as_printed)


@pytest.mark.parametrize("beta", [Fraction(7, 10), Fraction(2, 5)])
def test_with_gamma_equal_beta_a_replica_sends_its_fast_weights(beta: Fraction) -> None:
    c = Coefficients(Fraction(1, 2), beta, beta, half=Fraction(1, 2))
    phi, theta = Fraction(3, 7), Fraction(5, 11)
    assert outer.exchanged(theta - phi, phi, c) == beta * theta
