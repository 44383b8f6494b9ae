"""The one place that imports hivemind, and sets what it would otherwise change for the whole process.

`keep_time` gives its storages our clock in place of the wall clock, which may be set while the node runs.
hivemind switches torch's sharing strategy and puts a handler of its own on its loggers when imported; here the
strategy stays torch's default and its messages go where ours go. Importing this file takes a second and imports torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
os.environ.setdefault("HIVEMIND_LOGLEVEL", "WARNING")

from hivemind import hivemind_cli, utils
from hivemind.dht import node, protocol, routing
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.traverse import traverse_dht
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, read_pbmsg_safe, write_pbmsg
from hivemind.proto import dht_pb2, p2pd_pb2
from hivemind.utils import timed_storage
from hivemind.utils.logging import use_hivemind_log_handler

use_hivemind_log_handler("nowhere")

_NAMED_IN = (timed_storage, utils, routing, protocol, node)  # each has the name `get_dht_time` for itself


def dht_time_s() -> float:
    """Unix time by which records in this process expire, seconds."""
    return float(timed_storage.get_dht_time())


def keep_time(now_s: Callable[[], float] = time.time) -> None:
    """Let records expire by this unix time, in the whole process."""
    for module in _NAMED_IN:
        module.get_dht_time = now_s


__all__ = [
    "DHTID",
    "P2P",
    "DHTLocalStorage",
    "DHTNode",
    "DHTRecord",
    "DictionaryDHTValue",
    "P2PDaemonError",
    "PeerID",
    "RecordValidatorBase",
    "StreamInfo",
    "dht_pb2",
    "dht_time_s",
    "hivemind_cli",
    "keep_time",
    "p2pd_pb2",
    "read_pbmsg_safe",
    "traverse_dht",
    "write_pbmsg",
]
