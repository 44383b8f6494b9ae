"""NoLoCo (arXiv 2506.10911), section 3.2 and appendix: for which gamma the replicas stay together.

Deviations x of phi and m of delta from the mean of N replicas, no inner steps, independent random pairs. By eq. 2
and 3 a pair (a, b) gives m <- alpha m + gamma (x_b - x_a)/2, x <- x + m, and with the second moments X = E|x|^2,
C = E x.m, M = E|m|^2 and s = N / (2 (N - 1)) times the share of steps that are paired:

    E x.m' = alpha C - gamma s X
    M'     = alpha^2 M - 2 alpha gamma s C + gamma^2 s X
    X'     = X + 2 E x.m' + M' ;  C' = E x.m' + M'

Bounded iff 0 < gamma < 2 (1 - alpha^2) / (1 - alpha/(N-1)) with every step paired; towards 2 (1 - alpha) as steps
become solo. The range printed in the paper agrees with neither in general.
"""

from __future__ import annotations

import random

import pytest

from noloco_node.core import outer_update as outer
from noloco_node.core import pairing
from noloco_node.core.outer_update import Coefficients


def growth(alpha: float, gamma: float, num_replicas: int, paired_share: float = 1.0) -> float:
    """Growth factor of the second moments per outer step, by iteration."""
    s = paired_share * num_replicas / (2 * (num_replicas - 1))
    moments, steps, factor = (1.0, 0.0, 0.0), 40_000, 1.0
    for step in range(steps):
        x, c, m = moments
        cross = alpha * c - gamma * s * x
        energy = alpha**2 * m - 2 * alpha * gamma * s * c + gamma**2 * s * x
        size = abs(x + 2 * cross + energy) + energy
        moments = ((x + 2 * cross + energy) / size, (cross + energy) / size, energy / size)
        factor *= size if step >= steps // 2 else 1.0
        if factor > 1e100 or factor < 1e-100:
            break
    return factor


@pytest.mark.parametrize("num_replicas", [4, 8, 16, 1000])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.7, 0.9])
def test_always_paired_replicas_stay_together_iff_gamma_is_below_the_wide_bound(
    alpha: float, num_replicas: int
) -> None:
    bound = outer.paired_gamma_bound(alpha, num_replicas)
    assert growth(alpha, 0.97 * bound, num_replicas) < 1
    assert growth(alpha, 1.03 * bound, num_replicas) > 1


@pytest.mark.parametrize("paired_share", [1.0, 0.7, 0.3, 0.05])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.7, 0.9])
def test_below_the_safe_bound_replicas_stay_together_whatever_share_is_solo(alpha: float, paired_share: float) -> None:
    assert growth(alpha, 0.97 * outer.gamma_bound(alpha), 16, paired_share) < 1


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.9])
def test_with_nearly_all_steps_solo_no_greater_gamma_is_safe(alpha: float) -> None:
    assert growth(alpha, 1.1 * outer.gamma_bound(alpha), 16, paired_share=0.01) > 1


def test_the_defaults_are_safe_and_diloco_momentum_is_not() -> None:
    assert outer.gamma_bound(0.5) > 0.7
    assert growth(0.5, 0.7, 16) < 1
    assert outer.paired_gamma_bound(0.9, 16) < 0.7
    assert growth(0.9, 0.7, 16) > 1


@pytest.mark.parametrize(("alpha", "gamma", "together"), [(0.5, 0.7, True), (0.9, 0.15, True), (0.9, 0.7, False)])
def test_eight_replicas_paired_by_the_seed_behave_as_the_moments_say(
    alpha: float, gamma: float, together: bool
) -> None:
    numbers = random.Random(5)
    c = Coefficients(alpha, 0.7, gamma)
    phi, delta = [numbers.gauss(0, 1) for _ in range(8)], [0.0] * 8
    for outer_step in range(300):
        xs = [outer.exchanged(0.0, slow, c) for slow in phi]
        for replica in range(8):
            partner = pairing.partner(1, 0, outer_step, 8, replica)
            assert partner is not None
            correction = outer.correction(xs[replica], xs[partner], c)
            momentum, slow = outer.local_step(delta[replica], 0.0, phi[replica], c)
            delta[replica], phi[replica] = outer.add(momentum, correction), outer.add(slow, correction)
    spread = max(phi) - min(phi)
    assert spread < 1e-3 if together else spread > 1e3
