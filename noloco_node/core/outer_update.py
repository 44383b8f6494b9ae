"""The outer update of NoLoCo, written with + - * only.

Owns the equations, for one replica i and any value that has those operators: torch tensors, Fractions, integers. Must
not know: devices, dtypes, partners' names, when a step is due.

Notation: theta fast weights, phi slow weights, Delta = theta - phi the outer gradient (paper eq. 1), delta the outer
momentum, group of n replicas j. Paper eq. 2 and 3, with the sign that its appendix and its authors' code use:

    delta_i <- alpha*delta_i + beta*mean_j(Delta_j) + gamma*(mean_j(phi_j) - phi_i)
    phi_i   <- phi_i + delta_i ;  theta_i <- phi_i

Eq. 2 is printed with a minus before beta. With Delta as eq. 1 defines it that would walk away from the inner
progress, so the printed sign is wrong; the sign of the gamma term is right.

What a node runs is the same update in two parts (DESIGN 5a): the local step, which needs nobody, and a correction,
half of the difference of the two exchanged tensors, added when the partner has agreed:

    x_i = beta*Delta_i + gamma*phi_i                                   `exchanged`
    delta <- alpha*delta + beta*Delta ;  phi <- phi + delta            `local_step`
    c_a = (x_b - x_a) / 2  added to delta, phi and theta               `correction`, `add`

Where phi and Delta travel apart (mode prefetch), c_a is the same number from both: `prefetched_correction`.

For a pair mean(x) - x_a = (x_b - x_a)/2, hence the equality. c_b = -c_a whatever codec carried x, so the sum of a
pair never moves; a lost partner is c = 0, which is eq. 2 for n = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeVar

Scalar = int | float | Fraction


class Value(Protocol):
    """A tensor or number of one replica; elementwise + and -, * by a scalar."""

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...


V = TypeVar("V", bound=Value)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """alpha outer momentum, beta outer learning rate, gamma pull towards the partner. `half` is 1/2 in the same kind
    of number, so that Fractions stay exact."""

    alpha: Scalar
    beta: Scalar
    gamma: Scalar
    half: Scalar = 0.5


def exchanged(outer_gradient: V, phi: V, c: Coefficients) -> V:
    """x = beta*Delta + gamma*phi: all that a partner needs to know. Take it before `local_step`."""
    x: V = outer_gradient * c.beta + phi * c.gamma
    return x


def local_step(momentum: V, outer_gradient: V, phi: V, c: Coefficients) -> tuple[V, V]:
    """Eq. 2 and 3 for n = 1: delta <- alpha*delta + beta*Delta, phi <- phi + delta. Returns (momentum, phi)."""
    momentum = momentum * c.alpha + outer_gradient * c.beta
    return momentum, phi + momentum


def correction(x_own: V, x_partner: V, c: Coefficients) -> V:
    """c_a = (x_b - x_a) / 2, with both x as sent (decoded). The partner computes exactly the opposite."""
    half_difference: V = (x_partner - x_own) * c.half
    return half_difference


def prefetched_correction(half_slow: V, half_gradient: V, c: Coefficients) -> V:
    """c_a = gamma*(phi_b - phi_a)/2 + beta*(Delta_b - Delta_a)/2: mode prefetch, where phi and Delta travel apart.

    Both halves are `correction`s, so the partner computes exactly the opposite here too.
    """
    both: V = half_slow * c.gamma + half_gradient * c.beta
    return both


def add(value: V, correction: V) -> V:
    """delta, phi or theta once the correction is committed."""
    corrected: V = value + correction
    return corrected


def two_tensor_step(
    momentum: V, outer_gradients: Sequence[V], phis: Sequence[V], own: int, c: Coefficients
) -> tuple[V, V]:
    """Lab form: eq. 2 and 3 as the paper states them (sign corrected), group members' Delta and phi both at hand.

    `own` is this replica's place in the group of n >= 1. Returns (momentum, phi).
    """
    pull = mean(phis) - phis[own]
    momentum = momentum * c.alpha + mean(outer_gradients) * c.beta + pull * c.gamma
    return momentum, phis[own] + momentum


def group_step(momentum: V, phi: V, xs: Sequence[V], c: Coefficients) -> tuple[V, V]:
    """Lab form: eq. 2 and 3 from one tensor per member, delta <- alpha*delta + mean_j(x_j) - gamma*phi, n >= 1.

    `xs` holds this replica's own x as well. Returns (momentum, phi).
    """
    momentum = momentum * c.alpha + mean(xs) - phi * c.gamma
    return momentum, phi + momentum


def mean(values: Sequence[V]) -> V:
    """Mean over a group. Only the lab divides, and only by n; integers must be given as Fractions."""
    total: Any = values[0]
    for value in values[1:]:
        total = total + value
    result: V = total / len(values)
    return result


def gamma_bound(alpha: float) -> float:
    """2*(1 - alpha): a gamma below it is stable whatever share of the outer steps is solo (DESIGN 2)."""
    return 2 * (1 - alpha)


def paired_gamma_bound(alpha: float, num_replicas: int) -> float:
    """2*(1 - alpha^2) / (1 - alpha/(N - 1)): the wider bound if every step of all N replicas is paired (DESIGN 2).

    Infinite for a lone replica, which is never pulled. The paper's printed range agrees with neither in general.
    """
    if num_replicas < 2:
        return math.inf
    return 2 * (1 - alpha**2) / (1 - alpha / (num_replicas - 1))
