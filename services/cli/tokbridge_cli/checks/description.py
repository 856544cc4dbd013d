"""Checks of what a teacher says of itself and of its pair with a student. Pure."""

from __future__ import annotations

from tokbridge.description import TeacherDescription
from tokbridge.modes import routing_from_proto
from tokbridge.v1 import teacher_pb2
from tokbridge_cli.checks.result import Check, Status

_LARGEST_UNMAPPED_SHARE = 0.05


def check_handshake(teacher: TeacherDescription) -> Check:
    """Who it is; the client has compared versions, and replicas with one another."""
    names = ("model", "version", "backend", "dtype", "device", "vocabulary_fingerprint", "head_size", "instance_id")
    message = f"{teacher.model} on {teacher.device} in {teacher.dtype}, tokbridge {teacher.version}"
    return Check("handshake", Status.OK, message, {name: getattr(teacher, name) for name in names})


def check_template(teacher: TeacherDescription) -> Check:
    """Conversations are rendered with the teacher's own chat template."""
    if not teacher.chat_template_hash:
        return Check("template", Status.FAILED, "the teacher has no chat template, so it can score no conversation")
    return Check("template", Status.OK, f"chat template {teacher.chat_template_hash[:12]}")


def check_stop_tokens(teacher: TeacherDescription) -> Check:
    """A finished response gets its last row from the mass of these."""
    if not teacher.stop_ids:
        return Check("stop tokens", Status.FAILED, "the teacher knows no token that ends a turn")
    return Check("stop tokens", Status.OK, ", ".join(map(str, sorted(teacher.stop_ids))))


def check_limits(teacher: TeacherDescription, needed_tokens: int | None) -> Check:
    """What the teacher allows, against what a run needs."""
    facts = {"context_length": teacher.context_length, **vars(teacher.limits)}
    room = min(teacher.context_length, teacher.limits.max_tokens_in_flight)
    if needed_tokens is not None and needed_tokens > room:
        message = f"prompt and response have room for {room:,} teacher tokens, {needed_tokens:,} are needed"
        return Check("limits", Status.FAILED, message, facts)
    message = f"context of {teacher.context_length:,} tokens, top-k up to {teacher.limits.max_top_k:,}"
    return Check("limits", Status.OK, message, facts)


def check_routing(statistics_of_mode: teacher_pb2.RoutingStatistics) -> Check:
    """How much of the teacher's vocabulary reaches the student's."""
    mode = routing_from_proto(statistics_of_mode.routing)
    total = max(1, statistics_of_mode.teacher_content_tokens)
    identical, unmapped = statistics_of_mode.identical / total, statistics_of_mode.unmapped / total
    status = Status.WARNING if unmapped > _LARGEST_UNMAPPED_SHARE else Status.OK
    message = f"{identical:.1%} of the teacher's tokens are tokens of the student, {unmapped:.1%} reach none"
    return Check(f"routing {mode}", status, message, {"identical": identical, "unmapped": unmapped})
