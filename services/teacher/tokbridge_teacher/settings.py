"""Settings of a teacher service, checked before anything is loaded. Imports neither torch nor a web server.

Every field is an option of `tokbridge teacher serve`; the docstrings are its help.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokbridge_teacher.targets.options import MAX_TOP_K

_CONFIG = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
VLLM_OPTIONS = ("tensor_parallel_size", "gpu_memory_utilization", "enforce_eager")
"""Settings that the backend huggingface does not take."""


class RequestLimits(BaseModel):
    """What one caller may ask for."""

    model_config = _CONFIG

    max_top_k: int = Field(default=1024, ge=1, le=MAX_TOP_K)
    """Cells a row that a client may ask for."""
    default_top_k: int = Field(default=64, ge=1)
    """Cells a row where the client says nothing."""
    default_mass: float = Field(default=0.9985, gt=0, le=1)
    """Mass of a row to cover where the client says nothing; with 64 cells the least error within 160 bytes a row."""
    max_response_bytes: int = Field(default=4 << 20, ge=1)
    """Of one response."""
    max_conversation_bytes: int = Field(default=4 << 20, ge=1)
    """Messages, tools and template arguments, as UTF-8."""
    max_vocabulary_size: int = Field(default=1 << 20, ge=1)
    """Ids of a student's vocabulary."""
    max_vocabulary_bytes: int = Field(default=64 << 20, ge=1)
    """Everything a student's registration holds, unpacked."""
    max_students: int = Field(default=16, ge=1)
    """Students kept at once; the one not used for longest makes room."""
    max_message_bytes: int = Field(default=32 << 20, ge=1 << 16)
    """Of a gRPC message after decompression, of an HTTP body, or of an answer in JSON."""
    max_messages: int = Field(default=4096, ge=1)
    """Messages of one conversation."""
    max_tools: int = Field(default=512, ge=0)
    """Tools of one conversation."""
    max_template_arguments: int = Field(default=64, ge=0)
    """Extra arguments of the chat template."""

    @model_validator(mode="after")
    def _default_within_limit(self) -> RequestLimits:
        if self.default_top_k > self.max_top_k:
            raise ValueError("default_top_k is larger than max_top_k")
        return self


class ServeSettings(BaseModel):
    """Everything `tokbridge teacher serve` takes."""

    model_config = _CONFIG

    model: str = Field(min_length=1)
    """A Hugging Face folder, a GGUF folder or a hub id (ORG/NAME, or ORG/NAME@REVISION)."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8080, ge=0, le=65535)
    """HTTP port; 0 takes a free one."""
    grpc_port: int = Field(default=50051, ge=0, le=65535)
    """gRPC port; 0 takes a free one."""
    backend: Literal["huggingface", "vllm"] = "huggingface"
    """What runs the model: transformers in this process, or vLLM in processes of its own."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto, float32, bfloat16 or float16."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 …"""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share every layer (vLLM)."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Part of a GPU's memory that vLLM takes."""
    enforce_eager: bool = False
    """Neither compile nor capture graphs (vLLM): starts sooner, runs slower."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Tokens of prompt and response; none: as the model says."""
    chunk_rows: int = Field(default=256, ge=1)
    """Rows of one call of the LM head; bounds the memory that logits take."""
    piece_tokens: int = Field(default=2048, ge=1)
    """Tokens of one forward pass; bounds the memory that activations take."""
    batch_tokens: int = Field(default=8192, ge=1)
    """Tokens that run together; bounds the memory of keys and values."""
    max_failed_passes: int = Field(default=5, ge=1)
    """Passes in a row that a fault ends before the service is not ready; it is again once a pass ends well."""
    max_requests: int = Field(default=1024, ge=1)
    """Score requests held at once: in preparation, waiting, running, or with rows left for their caller."""
    max_tokens_in_flight: int = Field(default=4 << 20, ge=1)
    """Teacher tokens of the requests held."""
    max_result_bytes: int = Field(default=2 << 30, ge=1)
    """Bytes of rows that can wait for callers who read slowly, over all requests held."""
    max_registrations: int = Field(default=8, ge=1)
    """Students registered at once."""
    max_chunk_bytes: int = Field(default=4 << 30, ge=1)
    """Device memory of one chunk: chunk_rows × (teacher's head + student's vocabulary) × 4. A chunk has fewer rows
    where that would be more, and a response is refused of which not even one row fits."""
    read_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that rows are kept for a caller that takes none."""
    prepare_threads: int = Field(default=2, ge=1)
    """Threads for rendering, segmentation and plans."""
    render_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds for one rendering of the chat template."""
    max_render_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Memory of one rendering, beyond what its process takes anyway."""
    shutdown_grace_s: float = Field(default=30.0, gt=0)
    """Seconds that running requests get after SIGTERM."""
    api_keys_file: Path | None = None
    """Who may call, one NAME:SHARE:KEY a line; none, and no TOKBRIDGE_API_KEYS in the environment: everybody."""
    tls_certificate: Path | None = None
    """PEM chain, for both protocols; none: nothing is encrypted."""
    tls_key: Path | None = None
    """PEM key of the certificate."""
    tls_client_ca: Path | None = None
    """PEM certificates of authorities; with it, clients must show a certificate of one of them."""
    max_connections: int = Field(default=1024, ge=1)
    """HTTP connections at once: a further one takes the place of the one that is idle for longest; while all are busy,
    nothing but health is answered."""
    max_calls: int = Field(default=4096, ge=1)
    """gRPC calls at once, those that wait in the queue included; more are refused."""
    max_upload_bytes: int = Field(default=512 << 20, ge=1 << 20)
    """HTTP bodies, registrations and JSON answers held at once, over all connections."""
    trust_remote_code: bool = False
    """Run Python code that the model's repository brings."""
    otlp_endpoint: str | None = None
    """OpenTelemetry collector (OTLP over gRPC) that traces go to; none: only if the standard variables name one."""
    cache_dir: Path | None = None
    """Folder for compiled routing tables; none: not kept."""
    max_cache_bytes: int = Field(default=1 << 30, ge=1)
    """Of that folder; tables not used for longest make room."""
    limits: RequestLimits = RequestLimits()

    @model_validator(mode="after")
    def _options_of_the_backend(self) -> ServeSettings:
        if self.backend == "vllm" and self.device != "auto":
            raise ValueError("device is for the backend huggingface; vLLM takes what CUDA_VISIBLE_DEVICES shows")
        given = [name for name in VLLM_OPTIONS if getattr(self, name) != type(self).model_fields[name].default]
        if self.backend != "vllm" and given:
            raise ValueError(f"{given[0]} is for the backend vllm")
        return self

    @model_validator(mode="after")
    def _certificate_and_key(self) -> ServeSettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        if self.limits.max_message_bytes > self.max_upload_bytes:
            raise ValueError("limits.max_message_bytes is larger than max_upload_bytes")
        return self
