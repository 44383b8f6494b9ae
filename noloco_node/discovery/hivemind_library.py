"""The one place that imports hivemind, and sets what it would otherwise change for the whole process.

hivemind switches torch's sharing strategy and puts a handler of its own on its loggers when imported; here the
strategy stays torch's default and its messages go where ours go. Importing this file takes a second and imports torch.
"""

from __future__ import annotations

import os

os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
os.environ.setdefault("HIVEMIND_LOGLEVEL", "WARNING")

from hivemind import hivemind_cli
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.traverse import traverse_dht
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, read_pbmsg_safe, write_pbmsg
from hivemind.proto import dht_pb2, p2pd_pb2
from hivemind.utils.logging import use_hivemind_log_handler

use_hivemind_log_handler("nowhere")

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
    "hivemind_cli",
    "p2pd_pb2",
    "read_pbmsg_safe",
    "traverse_dht",
    "write_pbmsg",
]
