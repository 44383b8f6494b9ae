"""gRPC passes over channel arguments that it does not know, so a misspelt one goes unseen until it is missed."""

from pathlib import Path

import grpc._cython
import pytest

from noloco_node.core import limits
from noloco_node.transport.options import CLIENT, SERVER


@pytest.mark.parametrize("name", sorted({name for name, _ in (*CLIENT, *SERVER)}))
def test_channel_argument_is_one_that_grpc_knows(name: str) -> None:
    (library,) = Path(grpc._cython.__file__).parent.glob("cygrpc*.so")
    assert name.encode() in library.read_bytes()


def test_servers_bear_the_pings_that_clients_send() -> None:
    assert dict(SERVER)["grpc.http2.min_ping_interval_without_data_ms"] < dict(CLIENT)["grpc.keepalive_time_ms"]
    assert limits.PING_INTERVAL_MIN_S < limits.KEEPALIVE_S
