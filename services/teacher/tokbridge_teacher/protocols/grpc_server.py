"""The gRPC server: one port with the calls of the contract, health and reflection, and who is let in."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tokbridge.errors import InvalidConfigError, TokbridgeError
from tokbridge_teacher.protocols.authentication import Authenticator, GrpcAuthentication
from tokbridge_teacher.protocols.call_records import grpc_request_id
from tokbridge_teacher.protocols.grpc_errors import Context, refuse_call
from tokbridge_teacher.protocols.grpc_handlers import SERVICE, add_teacher
from tokbridge_teacher.protocols.grpc_health import Health
from tokbridge_teacher.protocols.grpc_room import RoomForCalls
from tokbridge_teacher.protocols.grpc_servicer import TeacherServicer
from tokbridge_teacher.service import TeacherService
from tokbridge_teacher.tls import ServerTls
from tokbridge_teacher.tls_rotation import grpc_credentials
from tokbridge_teacher.upload_budget import UploadBudget

_CONNECTION_OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 1024),
    # A client that vanished is noticed, and its calls end.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A call that was broken off because its client does not read stays in the transport until its connection goes.
    ("grpc.max_connection_age_ms", 2 * 3600_000),
    ("grpc.max_connection_age_grace_ms", 3600_000),
    # Our client asks twice a minute whether the service still lives, also while a call waits in the queue.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


class GrpcServer:
    """One listening gRPC server with health and reflection."""

    def __init__(
        self,
        service: TeacherService,
        *,
        host: str,
        port: int,
        max_message_bytes: int,
        max_calls: int | None = None,
        read_timeout_s: float | None = None,
        uploads: UploadBudget | None = None,
        authenticator: Authenticator | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """Bind the port.

        Args:
            max_message_bytes: of one message, after decompression.
            max_calls: calls under way at once, health left out; more are refused as overloaded. None: no bound.
            read_timeout_s: how long rows are kept for a caller that takes none, as the service is told too; its call
                is broken off soon after. None: never.
            uploads: room for all registrations that arrive; None: no more bound than that on one.
            authenticator: without one, everybody may call.
            tls: without it, nothing is encrypted.

        Raises:
            InvalidConfigError: the address cannot be listened on.
        """
        sizes = [("grpc.max_receive_message_length", max_message_bytes)]
        sizes += [("grpc.max_send_message_length", max_message_bytes)]
        self._server = grpc.aio.server(
            options=[*sizes, *_CONNECTION_OPTIONS],
            interceptors=_interceptors(service, authenticator, max_calls),
        )
        self._health = Health()
        servicer = TeacherServicer(service, uploads or UploadBudget(sys.maxsize), read_timeout_s)
        add_teacher(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port = self._bind(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", tls)

    def _bind(self, address: str, tls: ServerTls | None) -> int:
        try:
            if tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, grpc_credentials(tls))
        except RuntimeError as error:  # the only one that grpcio raises here
            raise InvalidConfigError(f"Cannot listen on {address} for gRPC.", field="grpc_port") from error

    async def start(self) -> None:
        """Listen; health says NOT_SERVING until `set_serving`."""
        self.set_serving(False)
        await self._server.start()

    def set_serving(self, serving: bool) -> None:
        """What the health service answers for the process and for the teacher; from the server's event loop."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no more calls and let running ones finish for `grace_s` seconds."""
        await self._server.stop(grace_s)


def _interceptors(
    service: TeacherService, authenticator: Authenticator | None, max_calls: int | None
) -> list[grpc.aio.ServerInterceptor]:
    """Who is asked before a message is read, in order: a call without a key takes nobody's place."""

    async def refuse(context: Context, error: TokbridgeError) -> None:
        await refuse_call(context, error, grpc_request_id(context))

    async def turn_away(context: Context, error: TokbridgeError) -> None:
        service.observer.turned_away(grpc_request_id(context), "grpc", error)
        await refuse(context, error)

    interceptors: list[grpc.aio.ServerInterceptor] = []
    if authenticator is not None:
        interceptors.append(GrpcAuthentication(authenticator, refuse))
    if max_calls is not None:
        interceptors.append(RoomForCalls(max_calls, turn_away))
    return interceptors
