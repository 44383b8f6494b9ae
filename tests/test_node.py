"""What a node does before anything runs."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from noloco_node.discovery.identity import IdentityLock
from noloco_node.driver.data_dir_lock import data_dir_locked
from noloco_node.errors import BadConfig, IdentityInUse
from noloco_node.node import Node


async def test_second_node_in_a_data_directory_is_refused_the_same_key_in_plainer_words(tmp_path: Path) -> None:
    config = SimpleNamespace(data_dir=tmp_path, identity_file=tmp_path / "identity.key")
    node = Node(config, SimpleNamespace())  # type: ignore[arg-type]
    key = IdentityLock(config.identity_file, tmp_path)
    with data_dir_locked(tmp_path):
        async with contextlib.AsyncExitStack() as closing:
            with pytest.raises(BadConfig, match="data directory"):
                node._lock_data_dir(closing)
            key.acquire()
            with pytest.raises(IdentityInUse):
                node._lock_data_dir(closing)
            key.release()
    async with contextlib.AsyncExitStack() as closing:
        node._lock_data_dir(closing)
        with pytest.raises(BadConfig), data_dir_locked(tmp_path):
            pass
