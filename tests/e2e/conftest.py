"""Deprecations inside torch and hivemind, met when a test reads the swarm's records itself, are not ours to mend."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for message in ("path is deprecated", ".torch.jit.script. is deprec"):
        config.addinivalue_line("filterwarnings", f"ignore:{message}:DeprecationWarning")
