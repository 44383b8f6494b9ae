"""Swarms of real processes as in tests/e2e, for what churn does to them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
