"""gRPC's channel arguments, both sides in one place so that they can be seen to fit."""

from __future__ import annotations

from noloco_node.core import limits

Options = list[tuple[str, int | str]]

BOTH: Options = [
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", int(limits.KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(limits.KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER: Options = [
    *BOTH,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", int(limits.PING_INTERVAL_MIN_S * 1000)),
    ("grpc.max_concurrent_streams", limits.CALLS_PER_CONNECTION_MAX),
]

CLIENT: Options = [
    *BOTH,
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", int(limits.REDIAL_MIN_S * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(limits.REDIAL_MAX_S * 1000)),
    ("grpc.min_reconnect_backoff_ms", int(limits.DIAL_DEADLINE_S * 1000)),
]
