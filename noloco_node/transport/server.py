"""The gRPC server behind the tunnel: the four services, health and reflection. No interceptors on long streams."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from noloco_node.core import limits
from noloco_node.transport.exchange_inbound import ExchangeService
from noloco_node.transport.hop_service import HopService
from noloco_node.transport.node_service import NodeService
from noloco_node.transport.options import SERVER
from noloco_node.transport.state_service import StateService
from noloco_node.wire import exchange_pb2, node_pb2, node_pb2_grpc, pipeline_pb2, state_pb2

NODE = node_pb2.DESCRIPTOR.services_by_name["NodeService"].full_name
PIPELINE = pipeline_pb2.DESCRIPTOR.services_by_name["PipelineService"].full_name
EXCHANGE = exchange_pb2.DESCRIPTOR.services_by_name["ExchangeService"].full_name
STATE = state_pb2.DESCRIPTOR.services_by_name["StateService"].full_name


@dataclass(frozen=True, slots=True)
class Services:
    node: NodeService
    hop: HopService
    exchange: ExchangeService
    state: StateService


class Server:
    """Listens on one unix socket only the tunnel can reach."""

    def __init__(self, services: Services, path: Path) -> None:
        self._services = services
        self._path = path
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server(options=SERVER, maximum_concurrent_rpcs=limits.CONCURRENT_CALLS_MAX)
        node_pb2_grpc.add_NodeServiceServicer_to_server(self._services.node, self._server)
        self._server.add_generic_rpc_handlers(byte_streams(self._services))
        await self._add_standard_services(self._server)
        self._server.add_insecure_port(f"unix:{self._path}")
        await self._server.start()

    async def _add_standard_services(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (NODE, PIPELINE, EXCHANGE, STATE, health.SERVICE_NAME)
        for name in names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)

    async def close(self) -> None:
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace=None)


def byte_streams(services: Services) -> tuple[grpc.GenericRpcHandler, ...]:
    """Handlers that see encoded frames: those that carry payload are taken apart by `frames`, not by protobuf."""
    stream = grpc.stream_stream_rpc_method_handler
    describe = grpc.unary_unary_rpc_method_handler(
        services.state.describe,
        request_deserializer=state_pb2.DescribeRequest.FromString,
        response_serializer=state_pb2.StateDescription.SerializeToString,
    )
    fetch = grpc.unary_stream_rpc_method_handler(
        services.state.fetch, request_deserializer=state_pb2.FetchRequest.FromString
    )
    methods = {
        PIPELINE: {"RunHop": stream(services.hop.run_hop)},
        EXCHANGE: {"Exchange": stream(services.exchange.exchange)},
        STATE: {"Describe": describe, "Fetch": fetch},
    }
    return tuple(grpc.method_handlers_generic_handler(name, handlers) for name, handlers in methods.items())
