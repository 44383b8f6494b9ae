"""Makes the strategies of this folder importable. Examples are few and the same each time: this is a test, no search.

`pytest tests/fuzz --hypothesis-profile long` searches on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

PLAIN = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
settings.register_profile("long", max_examples=20_000, **PLAIN)
