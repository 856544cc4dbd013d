"""The gRPC channel to one replica.

gRPC's own machinery reconnects, watches the replica's health and notices hosts that vanish. Its `round_robin` has one
address to choose from: a student is registered with an instance, so which instance gets a call is the client's choice;
but only under that policy does gRPC watch health. Its retries are off, so that one state machine counts every attempt.
"""

from __future__ import annotations

import json

import grpc
import grpc.aio

from tokbridge.client.resolution import Endpoint
from tokbridge.v1 import teacher_pb2

MAX_MESSAGE_BYTES = 64 * 2**20
"""gRPC's default of 4 MiB is less than a long conversation or a large chunk of rows."""

_SERVICE = teacher_pb2.DESCRIPTOR.services_by_name["Teacher"].full_name
_SERVICE_CONFIG = {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": _SERVICE}}

_OPTIONS: list[tuple[str, str | int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
    ("grpc.service_config_disable_resolution", 1),
    # A restarted service is found soon; gRPC's own default backs off to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Notices a host that vanished without closing. A server that finds this too often says so, and gRPC slows down.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Each client its own connection: channels with equal options would share one, its backoff included.
    ("grpc.use_local_subchannel_pool", 1),
]


def open_channel(endpoint: Endpoint, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A channel to `endpoint`, encrypted when there are credentials; connects when it is first used."""
    # The name, not the address, is what the certificate has to show.
    options = [*_OPTIONS, ("grpc.default_authority", endpoint.authority)]
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint.uri, options=options)
    return grpc.aio.secure_channel(endpoint.uri, credentials, options=options)
