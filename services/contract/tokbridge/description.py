"""Who a teacher is: what `GetTeacher` answers. Plain facts; the checks on them are the client's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tokbridge import modes
from tokbridge.modes import Routing, Spanning
from tokbridge.v1 import teacher_pb2


@dataclass(frozen=True)
class Limits:
    """What a service allows one caller to ask."""

    max_top_k: int
    max_response_bytes: int
    max_conversation_bytes: int
    max_vocabulary_size: int
    max_vocabulary_bytes: int
    max_tokens_in_flight: int

    def to_proto(self) -> teacher_pb2.Limits:
        """Wire form."""
        return teacher_pb2.Limits(**asdict(self))

    @classmethod
    def from_proto(cls, message: teacher_pb2.Limits) -> Limits:
        """From the wire form."""
        return cls(**{name: getattr(message, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class TeacherDescription:
    """One running teacher."""

    model: str
    vocabulary_fingerprint: str
    tokenizer_size: int
    head_size: int
    stop_ids: frozenset[int]
    chat_template_hash: str
    context_length: int
    limits: Limits
    routings: frozenset[Routing]
    spannings: frozenset[Spanning]
    version: str
    dtype: str
    device: str
    backend: str
    instance_id: str
    """Identifies one start of the process; after a change, students may have been forgotten."""

    @property
    def identity(self) -> dict[str, object]:
        """The facts that make it this teacher: what its replicas share and a restart must not change.

        Not the version, of which only the compatible part has to agree, and neither device nor limits.
        """
        return {name: getattr(self, name) for name in _IDENTITY}

    def to_proto(self) -> teacher_pb2.GetTeacherResponse:
        """Wire form."""
        return teacher_pb2.GetTeacherResponse(
            limits=self.limits.to_proto(),
            stop_ids=sorted(self.stop_ids),
            routings=[modes.routing_to_proto(routing) for routing in sorted(self.routings)],
            spannings=[modes.spanning_to_proto(spanning) for spanning in sorted(self.spannings)],
            **{name: getattr(self, name) for name in _SCALARS},
        )

    @classmethod
    def from_proto(cls, message: teacher_pb2.GetTeacherResponse) -> TeacherDescription:
        """From the wire form; modes that this version does not know are left out."""
        return cls(
            limits=Limits.from_proto(message.limits),
            stop_ids=frozenset(message.stop_ids),
            routings=modes.known_routings(message.routings),
            spannings=modes.known_spannings(message.spannings),
            **{name: getattr(message, name) for name in _SCALARS},
        )


_IDENTITY = (
    "model",
    "vocabulary_fingerprint",
    "tokenizer_size",
    "head_size",
    "stop_ids",
    "chat_template_hash",
    "context_length",
    "dtype",
    "routings",
    "spannings",
)
_NOT_SCALARS = {"limits", "stop_ids", "routings", "spannings"}
_SCALARS: Iterable[str] = [name for name in TeacherDescription.__dataclass_fields__ if name not in _NOT_SCALARS]
