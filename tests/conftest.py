"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("noloco", deadline=None)  # a busy machine is slow, not wrong
settings.load_profile("noloco")
