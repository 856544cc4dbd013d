"""The one taxonomy of errors, shared by services, client and trainer.

Every error that can reach a user is one of these classes. Each has a stable `code`; a protocol maps codes to its own
status in one table (`grpc_server.py`, `http_server.py`), and the client maps them back with `error_from_code`. The
module knows no protocol. Messages say what is wrong and what to do; they never carry text of an internal fault.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class ErrorCode(StrEnum):
    """Stable names of errors; they travel on the wire and in logs."""

    INVALID_VOCABULARY = "invalid_vocabulary"
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    UNSPELLABLE_BYTE = "unspellable_byte"
    UNKNOWN_STUDENT = "unknown_student"
    TOKENS_DO_NOT_SPELL_RESPONSE = "tokens_do_not_spell_response"
    TOKEN_ID_OUT_OF_RANGE = "token_id_out_of_range"
    STOP_TOKEN_NOT_IN_STOP_SET = "stop_token_not_in_stop_set"
    EMPTY_RESPONSE = "empty_response"
    MALFORMED_CONVERSATION = "malformed_conversation"
    CHAT_TEMPLATE_FAILED = "chat_template_failed"
    UNSUPPORTED_TEMPLATE = "unsupported_template"
    CONTENT_DROPPED_BY_TEMPLATE = "content_dropped_by_template"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    LIMIT_EXCEEDED = "limit_exceeded"
    UNSUPPORTED_MODE = "unsupported_mode"
    INVALID_REQUEST = "invalid_request"
    NON_FINITE_LOGITS = "non_finite_logits"
    UNAUTHENTICATED = "unauthenticated"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    INTERNAL = "internal"
    TEACHER_UNAVAILABLE = "teacher_unavailable"
    TEACHER_MISMATCH = "teacher_mismatch"
    CORRUPT_STREAM = "corrupt_stream"
    SELF_TEST_FAILED = "self_test_failed"
    INVALID_CONFIG = "invalid_config"
    INVALID_DATA = "invalid_data"
    UNROUTED_PROMPT = "unrouted_prompt"
    CHECKPOINT = "checkpoint"
    HUB = "hub"
    ACTOR_LOST = "actor_lost"
    INCOMPLETE_WEIGHTS = "incomplete_weights"
    ROLLOUT_FAILED = "rollout_failed"
    NON_FINITE_GRADIENT = "non_finite_gradient"


class TokbridgeError(Exception):
    """Base of every error of this package.

    Attributes:
        code: stable name of the error.
        retryable: whether the same call may succeed later, unchanged.
        details: machine-readable facts (offsets, ids, limits), values as strings or numbers.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: str | int | float) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders (Ray), so they pickle with their details."""
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[TokbridgeError], message: str, details: dict[str, str | int | float]) -> TokbridgeError:
    return cls(message, **details)


class InvalidVocabularyError(TokbridgeError, ValueError):
    """A tokenizer cannot be read as a table id → bytes."""

    code = ErrorCode.INVALID_VOCABULARY


class TokenizerMismatchError(TokbridgeError, ValueError):
    """A tokenizer class segments differently from its own `tokenizer.json`."""

    code = ErrorCode.TOKENIZER_MISMATCH


class UnspellableByteError(TokbridgeError, ValueError):
    """A vocabulary has no token for a byte. Details: `byte`, `offset`."""

    code = ErrorCode.UNSPELLABLE_BYTE


class UnknownStudentError(TokbridgeError, LookupError):
    """The service does not know this student; register it (again). Details: `student_id`."""

    code = ErrorCode.UNKNOWN_STUDENT


class TokensDoNotSpellResponseError(TokbridgeError, ValueError):
    """The bytes of the ids are not the response. Details: `offset`, the first byte that differs."""

    code = ErrorCode.TOKENS_DO_NOT_SPELL_RESPONSE


class TokenIdOutOfRangeError(TokbridgeError, ValueError):
    """An id is not in the vocabulary. Details: `token_id`, `index`, `vocabulary_size`."""

    code = ErrorCode.TOKEN_ID_OUT_OF_RANGE


class StopTokenNotInStopSetError(TokbridgeError, ValueError):
    """The response's stop token is not one the student registered. Details: `token_id`."""

    code = ErrorCode.STOP_TOKEN_NOT_IN_STOP_SET


class EmptyResponseError(TokbridgeError, ValueError):
    """A response with neither content nor a stop token."""

    code = ErrorCode.EMPTY_RESPONSE


class MalformedConversationError(TokbridgeError, ValueError):
    """Messages that no chat template could take. Details: `message_index` where one is at fault."""

    code = ErrorCode.MALFORMED_CONVERSATION


class ChatTemplateError(TokbridgeError, ValueError):
    """A chat template refused the conversation; its own message is passed on."""

    code = ErrorCode.CHAT_TEMPLATE_FAILED


class UnsupportedTemplateError(TokbridgeError, ValueError):
    """A chat template of a kind that is not supported (channels), or none at all."""

    code = ErrorCode.UNSUPPORTED_TEMPLATE


class ContentDroppedByTemplateError(TokbridgeError, ValueError):
    """The rendered prompt lacks a message that is not an assistant's. Details: `message_index`."""

    code = ErrorCode.CONTENT_DROPPED_BY_TEMPLATE


class ContextLengthExceededError(TokbridgeError, ValueError):
    """Prompt and response do not fit the model. Details: `tokens`, `limit`."""

    code = ErrorCode.CONTEXT_LENGTH_EXCEEDED


class LimitExceededError(TokbridgeError, ValueError):
    """A request is larger than the service allows. Details: `limit`, `value`, `name`."""

    code = ErrorCode.LIMIT_EXCEEDED


class UnsupportedModeError(TokbridgeError, ValueError):
    """A combination of routing and spanning modes that does harm or is not known."""

    code = ErrorCode.UNSUPPORTED_MODE


class InvalidRequestError(TokbridgeError, ValueError):
    """A field of a request is missing or malformed. Details: `field`."""

    code = ErrorCode.INVALID_REQUEST


class NonFiniteLogitsError(TokbridgeError, ArithmeticError):
    """The model gave NaN or +inf for this response, or −inf where a target has mass. Details: `position`."""

    code = ErrorCode.NON_FINITE_LOGITS


class UnauthenticatedError(TokbridgeError, PermissionError):
    """The service wants an API key, and none that it knows was shown."""

    code = ErrorCode.UNAUTHENTICATED


class OverloadedError(TokbridgeError):
    """The queue is full; try again after `retry_after_s`."""

    code = ErrorCode.OVERLOADED
    retryable = True


class ShuttingDownError(TokbridgeError):
    """The service takes no new request: it is stopping, or its model fails."""

    code = ErrorCode.SHUTTING_DOWN
    retryable = True


class DeadlineExceededError(TokbridgeError, TimeoutError):
    """The deadline passed before the answer was there."""

    code = ErrorCode.DEADLINE_EXCEEDED


class RequestCancelledError(TokbridgeError):
    """The caller went away."""

    code = ErrorCode.CANCELLED


class InternalError(TokbridgeError, RuntimeError):
    """A fault of the service itself; its log holds the cause under `request_id`."""

    code = ErrorCode.INTERNAL


class TeacherUnavailableError(TokbridgeError, ConnectionError):
    """No service answers at this URL."""

    code = ErrorCode.TEACHER_UNAVAILABLE
    retryable = True


class TeacherMismatchError(TokbridgeError, ValueError):
    """The service at this URL is not the teacher it was, or cannot do what is asked."""

    code = ErrorCode.TEACHER_MISMATCH


class CorruptStreamError(TokbridgeError, ValueError):
    """A stream of target rows is incomplete or its checksum is wrong."""

    code = ErrorCode.CORRUPT_STREAM
    retryable = True


class SelfTestFailedError(TokbridgeError, RuntimeError):
    """A backend does not compute what the model itself computes."""

    code = ErrorCode.SELF_TEST_FAILED


class InvalidConfigError(TokbridgeError, ValueError):
    """A configuration value is wrong. Details: `field`."""

    code = ErrorCode.INVALID_CONFIG


class InvalidDataError(TokbridgeError, ValueError):
    """A data set cannot be used. Details: `row`, `column`."""

    code = ErrorCode.INVALID_DATA


class UnroutedPromptError(TokbridgeError, ValueError):
    """A prompt goes to none of the teachers. Details: `row`."""

    code = ErrorCode.UNROUTED_PROMPT


class CheckpointError(TokbridgeError, OSError):
    """A checkpoint is missing, incomplete or of another run."""

    code = ErrorCode.CHECKPOINT


class HubError(TokbridgeError, OSError):
    """The Hugging Face hub does not have it, refuses, or cannot be reached."""

    code = ErrorCode.HUB


class ActorLostError(TokbridgeError, RuntimeError):
    """A process of a training run was lost as it started, or more often than it may be started again. Details: `actor`,
    `restarts`."""

    code = ErrorCode.ACTOR_LOST


class IncompleteWeightsError(TokbridgeError, RuntimeError):
    """A weight update is not whole, or one broke off: nothing is sampled before a whole one. Details: `version`."""

    code = ErrorCode.INCOMPLETE_WEIGHTS


class RolloutFailedError(TokbridgeError, RuntimeError):
    """An engine ended a response neither at a stop token nor at its length cap, or changed weights under it."""

    code = ErrorCode.ROLLOUT_FAILED


class NonFiniteGradientError(TokbridgeError, ArithmeticError):
    """A gradient of the student holds NaN or infinity; no step was made with it."""

    code = ErrorCode.NON_FINITE_GRADIENT


_BY_CODE: dict[ErrorCode, type[TokbridgeError]] = {cls.code: cls for cls in TokbridgeError.__subclasses__()}


def error_from_code(code: str, message: str, details: dict[str, str | int | float]) -> TokbridgeError:
    """Build the error a peer sent; a code this version does not know becomes `InternalError`."""
    known = code in ErrorCode._value2member_map_
    cls = _BY_CODE[ErrorCode(code)] if known else InternalError
    return cls(message, **details)
