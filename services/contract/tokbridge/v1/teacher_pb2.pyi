from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Routing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUTING_UNSPECIFIED: _ClassVar[Routing]
    ROUTING_GREEDY: _ClassVar[Routing]
    ROUTING_BPE: _ClassVar[Routing]

class Spanning(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPANNING_UNSPECIFIED: _ClassVar[Spanning]
    SPANNING_REALIZED: _ClassVar[Spanning]
    SPANNING_LOOKAHEAD: _ClassVar[Spanning]
ROUTING_UNSPECIFIED: Routing
ROUTING_GREEDY: Routing
ROUTING_BPE: Routing
SPANNING_UNSPECIFIED: Spanning
SPANNING_REALIZED: Spanning
SPANNING_LOOKAHEAD: Spanning

class GetTeacherRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTeacherResponse(_message.Message):
    __slots__ = ("model", "vocabulary_fingerprint", "tokenizer_size", "head_size", "stop_ids", "chat_template_hash", "context_length", "limits", "routings", "spannings", "version", "dtype", "device", "backend", "instance_id")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SIZE_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_HASH_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ROUTINGS_FIELD_NUMBER: _ClassVar[int]
    SPANNINGS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    model: str
    vocabulary_fingerprint: str
    tokenizer_size: int
    head_size: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    chat_template_hash: str
    context_length: int
    limits: Limits
    routings: _containers.RepeatedScalarFieldContainer[Routing]
    spannings: _containers.RepeatedScalarFieldContainer[Spanning]
    version: str
    dtype: str
    device: str
    backend: str
    instance_id: str
    def __init__(self, model: _Optional[str] = ..., vocabulary_fingerprint: _Optional[str] = ..., tokenizer_size: _Optional[int] = ..., head_size: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., chat_template_hash: _Optional[str] = ..., context_length: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., routings: _Optional[_Iterable[_Union[Routing, str]]] = ..., spannings: _Optional[_Iterable[_Union[Spanning, str]]] = ..., version: _Optional[str] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., backend: _Optional[str] = ..., instance_id: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_top_k", "max_response_bytes", "max_conversation_bytes", "max_vocabulary_size", "max_vocabulary_bytes", "max_tokens_in_flight")
    MAX_TOP_K_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONVERSATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_VOCABULARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    max_top_k: int
    max_response_bytes: int
    max_conversation_bytes: int
    max_vocabulary_size: int
    max_vocabulary_bytes: int
    max_tokens_in_flight: int
    def __init__(self, max_top_k: _Optional[int] = ..., max_response_bytes: _Optional[int] = ..., max_conversation_bytes: _Optional[int] = ..., max_vocabulary_size: _Optional[int] = ..., max_vocabulary_bytes: _Optional[int] = ..., max_tokens_in_flight: _Optional[int] = ...) -> None: ...

class RegisterStudentRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: StudentHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[StudentHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class StudentHeader(_message.Message):
    __slots__ = ("name", "student_id", "vocabulary_size", "stop_ids", "token_lengths_bytes", "token_bytes_bytes", "canonical_ids_bytes", "tokenizer_json_bytes", "turn_end_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STUDENT_ID_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LENGTHS_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_BYTES_FIELD_NUMBER: _ClassVar[int]
    CANONICAL_IDS_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_JSON_BYTES_FIELD_NUMBER: _ClassVar[int]
    TURN_END_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    student_id: str
    vocabulary_size: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    token_lengths_bytes: int
    token_bytes_bytes: int
    canonical_ids_bytes: int
    tokenizer_json_bytes: int
    turn_end_id: int
    def __init__(self, name: _Optional[str] = ..., student_id: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., token_lengths_bytes: _Optional[int] = ..., token_bytes_bytes: _Optional[int] = ..., canonical_ids_bytes: _Optional[int] = ..., tokenizer_json_bytes: _Optional[int] = ..., turn_end_id: _Optional[int] = ...) -> None: ...

class RegisterStudentResponse(_message.Message):
    __slots__ = ("student_id", "already_known", "statistics")
    STUDENT_ID_FIELD_NUMBER: _ClassVar[int]
    ALREADY_KNOWN_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    student_id: str
    already_known: bool
    statistics: _containers.RepeatedCompositeFieldContainer[RoutingStatistics]
    def __init__(self, student_id: _Optional[str] = ..., already_known: bool = ..., statistics: _Optional[_Iterable[_Union[RoutingStatistics, _Mapping]]] = ...) -> None: ...

class RoutingStatistics(_message.Message):
    __slots__ = ("routing", "teacher_content_tokens", "identical", "shortened", "unmapped", "routed_to_dead_tokens", "not_what_the_encoder_emits", "compile_seconds", "from_cache")
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    TEACHER_CONTENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IDENTICAL_FIELD_NUMBER: _ClassVar[int]
    SHORTENED_FIELD_NUMBER: _ClassVar[int]
    UNMAPPED_FIELD_NUMBER: _ClassVar[int]
    ROUTED_TO_DEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NOT_WHAT_THE_ENCODER_EMITS_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FROM_CACHE_FIELD_NUMBER: _ClassVar[int]
    routing: Routing
    teacher_content_tokens: int
    identical: int
    shortened: int
    unmapped: int
    routed_to_dead_tokens: int
    not_what_the_encoder_emits: int
    compile_seconds: float
    from_cache: bool
    def __init__(self, routing: _Optional[_Union[Routing, str]] = ..., teacher_content_tokens: _Optional[int] = ..., identical: _Optional[int] = ..., shortened: _Optional[int] = ..., unmapped: _Optional[int] = ..., routed_to_dead_tokens: _Optional[int] = ..., not_what_the_encoder_emits: _Optional[int] = ..., compile_seconds: _Optional[float] = ..., from_cache: bool = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "tool_calls_json", "tool_call_id", "name", "reasoning_content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASONING_CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool_calls_json: str
    tool_call_id: str
    name: str
    reasoning_content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls_json: _Optional[str] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., reasoning_content: _Optional[str] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("student_id", "messages", "tools_json", "template_arguments_json", "student_generation_prompt_tail", "response", "token_ids", "stop_id", "routing", "spanning", "top_k", "mass", "request_id")
    STUDENT_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    STUDENT_GENERATION_PROMPT_TAIL_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    SPANNING_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    student_id: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    tools_json: str
    template_arguments_json: str
    student_generation_prompt_tail: str
    response: bytes
    token_ids: bytes
    stop_id: int
    routing: Routing
    spanning: Spanning
    top_k: int
    mass: float
    request_id: str
    def __init__(self, student_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., tools_json: _Optional[str] = ..., template_arguments_json: _Optional[str] = ..., student_generation_prompt_tail: _Optional[str] = ..., response: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., stop_id: _Optional[int] = ..., routing: _Optional[_Union[Routing, str]] = ..., spanning: _Optional[_Union[Spanning, str]] = ..., top_k: _Optional[int] = ..., mass: _Optional[float] = ..., request_id: _Optional[str] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("rows", "trailer")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    rows: Rows
    trailer: ScoreTrailer
    def __init__(self, rows: _Optional[_Union[Rows, _Mapping]] = ..., trailer: _Optional[_Union[ScoreTrailer, _Mapping]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("first_row", "cases", "flags", "cell_counts", "cells", "cell_id_bits", "residual_unmapped", "residual_control", "residual_truncated", "emitted_log_prob")
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    CASES_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    CELL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    CELL_ID_BITS_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_UNMAPPED_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_CONTROL_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    EMITTED_LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    first_row: int
    cases: bytes
    flags: bytes
    cell_counts: bytes
    cells: bytes
    cell_id_bits: int
    residual_unmapped: bytes
    residual_control: bytes
    residual_truncated: bytes
    emitted_log_prob: bytes
    def __init__(self, first_row: _Optional[int] = ..., cases: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., cell_counts: _Optional[bytes] = ..., cells: _Optional[bytes] = ..., cell_id_bits: _Optional[int] = ..., residual_unmapped: _Optional[bytes] = ..., residual_control: _Optional[bytes] = ..., residual_truncated: _Optional[bytes] = ..., emitted_log_prob: _Optional[bytes] = ...) -> None: ...

class ScoreTrailer(_message.Message):
    __slots__ = ("num_rows", "checksum", "cases", "seam", "notes", "prompt_tokens", "content_tokens", "content_log_prob", "stop_log_prob", "scored_bytes", "timings", "shared_prompt_tokens", "unresolved_mass", "lookahead_tail")
    class CasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CASES_FIELD_NUMBER: _ClassVar[int]
    SEAM_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    STOP_LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    SCORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    SHARED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNRESOLVED_MASS_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_TAIL_FIELD_NUMBER: _ClassVar[int]
    num_rows: int
    checksum: int
    cases: _containers.ScalarMap[str, int]
    seam: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    prompt_tokens: int
    content_tokens: int
    content_log_prob: float
    stop_log_prob: float
    scored_bytes: int
    timings: Timings
    shared_prompt_tokens: int
    unresolved_mass: float
    lookahead_tail: float
    def __init__(self, num_rows: _Optional[int] = ..., checksum: _Optional[int] = ..., cases: _Optional[_Mapping[str, int]] = ..., seam: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ..., prompt_tokens: _Optional[int] = ..., content_tokens: _Optional[int] = ..., content_log_prob: _Optional[float] = ..., stop_log_prob: _Optional[float] = ..., scored_bytes: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., shared_prompt_tokens: _Optional[int] = ..., unresolved_mass: _Optional[float] = ..., lookahead_tail: _Optional[float] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("prepare_seconds", "queue_seconds", "compute_seconds", "total_seconds")
    PREPARE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    prepare_seconds: float
    queue_seconds: float
    compute_seconds: float
    total_seconds: float
    def __init__(self, prepare_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., compute_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "details", "retryable", "request_id")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    details: _containers.ScalarMap[str, str]
    retryable: bool
    request_id: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ..., retryable: bool = ..., request_id: _Optional[str] = ...) -> None: ...
