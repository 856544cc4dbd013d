"""The teacher client: what a trainer imports to have responses scored."""

from tokbridge.client.blocking import BlockingTeacherClient
from tokbridge.client.breaker import BreakerPolicy
from tokbridge.client.credentials import ClientCredentials
from tokbridge.client.expectation import TeacherExpectation
from tokbridge.client.retry import RetryPolicy
from tokbridge.client.statistics import ClientStatistics
from tokbridge.client.teacher_client import TeacherClient
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult

__all__ = [
    "BlockingTeacherClient",
    "BreakerPolicy",
    "ClientCredentials",
    "ClientStatistics",
    "RetryPolicy",
    "ScoreRequest",
    "ScoreResult",
    "StudentRegistration",
    "TeacherClient",
    "TeacherExpectation",
]
