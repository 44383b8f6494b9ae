"""A data directory belongs to one node."""

import os
import resource
from pathlib import Path

import pytest

from noloco_node.driver.data_dir_lock import data_dir_locked
from noloco_node.driver.open_files import raise_open_files_limit
from noloco_node.errors import BadConfig, DiskFailed


def test_second_node_in_a_data_directory_is_refused_and_hears_who_holds_it(tmp_path: Path) -> None:
    with data_dir_locked(tmp_path):
        with pytest.raises(BadConfig, match=f"in use by process {os.getpid()}") as refused, data_dir_locked(tmp_path):
            pass
        assert "--data-dir" in refused.value.advice


def test_data_directory_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with data_dir_locked(tmp_path):
            pass


def test_data_directory_that_cannot_be_locked_is_a_disk_fault(tmp_path: Path) -> None:
    with pytest.raises(DiskFailed), data_dir_locked(tmp_path / "missing"):
        pass


def test_open_files_go_up_to_the_hard_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        assert raise_open_files_limit() == min(before[1], 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
