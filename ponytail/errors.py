"""Every error ponytail raises on purpose.

    PonytailError
    ├── RequestError            the client can mend it: a 4xx
    │   ├── InvalidRequest          400  a field is wrong; `param` names it
    │   │   ├── UnknownParameter        no such field
    │   │   └── UnsupportedParameter    known, but this server cannot do it
    │   ├── ContextLengthExceeded   400  the prompt does not fit the window
    │   ├── UnsupportedContent      400  a part this server cannot read (image, audio, ...)
    │   ├── TemplateError           400  the chat template refused or broke
    │   ├── Forbidden               403  not for the page or host that asks
    │   ├── NotFound                404  no such route
    │   │   └── ModelNotFound           no such model
    │   ├── MethodNotAllowed        405
    │   ├── PayloadTooLarge         413
    │   ├── UnsupportedMediaType    415
    │   ├── ConstraintFailed        400  no token fits the grammar that the answer must keep to
    │   ├── DeadlineExceeded        408  `deadline_s` passed before the first token
    │   └── Overloaded              429  the queue is full; `retry_after_s` is an estimate
    ├── ServiceError            the server's side: a 5xx
    │   ├── ModelLoading            503  try again when /health says ok
    │   ├── ShuttingDown            503
    │   ├── RequestCancelled        499  the client went away; nobody reads this one
    │   └── EngineFailed            500  this one request broke; others go on
    └── StartError              the process cannot start: exit code 2 and one line
        ├── BadModelFile
        ├── BadConfig
        └── BindingMismatch

    DecodeError (OutOfCells), SampleError   between a backend and the engine; never reach a client

Each error knows its HTTP status, machine code and type, so that dialects only
choose the JSON shape.  Owns nothing else; imports nothing of ponytail.
"""

from __future__ import annotations


class PonytailError(Exception):
    """Base of the tree.  `str(error)` is the sentence a person reads."""

    status: int = 500
    code: str = "internal_error"
    type: str = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class RequestError(PonytailError):
    """The request is at fault."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class InvalidRequest(RequestError):
    """A field is missing, of the wrong type or out of range; `param` names it."""

    code = "invalid_value"


class UnknownParameter(InvalidRequest):
    """A field this server has never heard of; nothing is dropped silently."""

    code = "unknown_parameter"


class UnsupportedParameter(InvalidRequest):
    """A known field whose effect this server cannot give."""

    code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """The prompt alone does not fit into the context window; `note` ends the message."""

    code = "context_length_exceeded"

    def __init__(
        self, n_prompt: int, n_ctx: int, *, param: str | None = "messages", note: str = ""
    ) -> None:
        super().__init__(
            f"This model's maximum context length is {n_ctx} tokens. "
            f"However, your prompt has {n_prompt} tokens, which leaves no room for an answer. "
            f"Please shorten it.{note}",
            param=param,
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class InputTooLong(RequestError):
    """A text to embed or to rank is longer than the window."""

    code = "context_length_exceeded"

    def __init__(self, n_tokens: int, n_ctx: int, *, param: str) -> None:
        super().__init__(
            f"This model reads texts of up to {n_ctx} tokens; {param} has {n_tokens}.", param=param
        )


class UnsupportedContent(RequestError):
    """A content part of a kind this server cannot read."""

    code = "unsupported_content"


class TemplateError(RequestError):
    """The chat template raised, is broken, or ran past its limits."""

    code = "template_error"


class Forbidden(RequestError):
    """The request comes in under a name or from a page that may not ask."""

    status = 403
    code = "forbidden"
    type = "permission_error"


class NotFound(RequestError):
    """No such route."""

    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """No model of that name is served; the message lists those that are."""

    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """The route exists, the method does not."""

    status = 405
    code = "method_not_allowed"


class PayloadTooLarge(RequestError):
    """The body is over the limit."""

    status = 413
    code = "payload_too_large"


class UnsupportedMediaType(RequestError):
    """The body is not declared as JSON."""

    status = 415
    code = "unsupported_media_type"


class Overloaded(RequestError):
    """The queue is full."""

    status = 429
    code = "overloaded"
    type = "rate_limit_error"


class ConstraintFailed(RequestError):
    """The grammar of the answer allows no token, or none that the request's bias leaves."""

    code = "constraint_failed"


class DeadlineExceeded(RequestError):
    """The request's own deadline passed before it had its first token."""

    status = 408
    code = "deadline_exceeded"
    type = "timeout_error"


class ServiceError(PonytailError):
    """The server is at fault, or not ready."""


class ModelLoading(ServiceError):
    """The model is not loaded yet."""

    status = 503
    code = "model_loading"
    type = "service_unavailable_error"


class ShuttingDown(ServiceError):
    """The server is going down and takes no new work."""

    status = 503
    code = "shutting_down"
    type = "service_unavailable_error"


class EngineFailed(ServiceError):
    """This request broke inside the engine."""

    code = "engine_failed"


class RequestCancelled(ServiceError):
    """The request was cancelled; the terminal event of a choice nobody waits for."""

    status = 499
    code = "cancelled"


class StartError(PonytailError):
    """ponytail cannot start."""

    exit_code = 2


class BadModelFile(StartError):
    """The model file is missing, damaged or hostile; the message names path and reason."""

    code = "bad_model_file"


class BadConfig(StartError):
    """A setting is wrong or cannot be honoured by this build."""

    code = "bad_config"


class BindingMismatch(StartError):
    """The installed llama-cpp-python is not the version ponytail was written for."""

    code = "binding_mismatch"


class DecodeError(Exception):
    """A batch could not be computed; sequences may hold part of it until they are cut."""


class OutOfCells(DecodeError):
    """The cells do not suffice; nothing was computed and nothing changed."""


class SampleError(Exception):
    """A row of logits has no valid pick (not a number, or everything forbidden)."""
