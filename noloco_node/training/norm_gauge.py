"""Judges the size of a correction by those accepted before it."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from noloco_node.core import limits


class NormGauge:
    """Running median of accepted sizes, root mean squares of c. One far above it is refused and not remembered, nor is
    zero, after which all would be far above."""

    def __init__(self) -> None:
        self._accepted: deque[float] = deque(maxlen=limits.NORM_MEDIAN_WINDOW)

    def judge(self, size: float) -> str:
        """Why `size` is refused; "" when it is accepted."""
        if not math.isfinite(size):
            return "correction is not finite"
        if len(self._accepted) >= limits.NORM_MEDIAN_MIN:
            usual = median(self._accepted)
            if size > limits.NORM_FACTOR_MAX * usual:
                return f"the correction, {size:.3g} in root mean square, is far above the usual {usual:.3g}"
        if size > 0:
            self._accepted.append(size)
        return ""
