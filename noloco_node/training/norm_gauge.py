"""Judges the size of a correction by those accepted before it."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from noloco_node.core import limits


class NormGauge:
    """Running median of accepted norms. A norm far above it is refused and not remembered."""

    def __init__(self) -> None:
        self._accepted: deque[float] = deque(maxlen=limits.NORM_MEDIAN_WINDOW)

    def judge(self, norm: float) -> str:
        """Why `norm` is refused; "" when it is accepted."""
        if not math.isfinite(norm):
            return "correction is not finite"
        if len(self._accepted) >= limits.NORM_MEDIAN_MIN:
            usual = median(self._accepted)
            if norm > limits.NORM_FACTOR_MAX * usual > 0:
                return f"norm {norm:.3g} of the correction is far above the usual {usual:.3g}"
        self._accepted.append(norm)
        return ""
