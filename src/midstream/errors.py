"""Owns the exception tree: every error says who can mend it, its HTTP status and its code. Knows nothing else.

MidstreamError
├── RequestError              400  the caller's: change the request
│   ├── UnsupportedField      400  a field we know and do not serve yet
│   ├── ContextLengthExceeded 400
│   ├── Unauthorized          401
│   ├── ModelNotFound         404
│   └── BodyTooLarge          413
├── CapacityError             503  nobody's: try again after `retry_after_s`
│   ├── QueueFull             429
│   ├── Draining              503
│   └── EngineLoading         503
├── EngineError               500  ours
│   ├── EngineDied            503
│   └── DeadlineExceeded      504
├── OperatorError             500  whoever started the server
│   ├── ConfigError
│   └── ModelFileError
├── ToolError                      text for the model, never an HTTP error
│   ├── ToolArgumentsInvalid
│   ├── ToolFailed
│   ├── ToolTimedOut
│   ├── ToolOverLimit
│   ├── ToolCancelled
│   ├── ToolUnavailable
│   └── ToolHostDied
└── ProtocolError                  bytes that break btif.md
    ├── BtifError
    └── EnvelopeError
"""

from typing import ClassVar


class MidstreamError(Exception):
    """Root of the tree. `message` is written for the person who can mend the fault."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str = "internal_error"
    retry_after_s: ClassVar[int | None] = None
    """When trying again may help: the response's Retry-After."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class RequestError(MidstreamError):
    """The request cannot be served as it is; the message gives the value, the limit and the remedy."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class UnsupportedField(RequestError):
    code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    code = "context_length_exceeded"


class Unauthorized(RequestError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class ModelNotFound(RequestError):
    status = 404
    type = "not_found_error"
    code = "model_not_found"


class BodyTooLarge(RequestError):
    status = 413
    code = "body_too_large"


class CapacityError(MidstreamError):
    """Nothing is wrong with the request; it may succeed after `retry_after_s` seconds."""

    status = 503
    type = "overloaded_error"
    code = "overloaded"
    retry_after_s = 1


class QueueFull(CapacityError):
    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class Draining(CapacityError):
    code = "shutting_down"
    retry_after_s = 10


class EngineLoading(CapacityError):
    code = "engine_loading"
    retry_after_s = 5


class EngineError(MidstreamError):
    type = "engine_error"
    code = "engine_error"


class EngineDied(EngineError):
    status = 503
    code = "engine_died"
    retry_after_s = 5


class DeadlineExceeded(EngineError):
    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"


class OperatorError(MidstreamError):
    """Something that whoever starts the server has to mend."""


class ConfigError(OperatorError):
    code = "bad_configuration"


class ModelFileError(OperatorError):
    code = "bad_model_file"


class ToolError(MidstreamError):
    """A tool call that ended without a result; its message becomes text for the model."""

    code = "tool_failed"


class ToolArgumentsInvalid(ToolError):
    code = "invalid_arguments"


class ToolFailed(ToolError):
    pass


class ToolTimedOut(ToolError):
    code = "timed_out"


class ToolOverLimit(ToolError):
    code = "over_limit"


class ToolCancelled(ToolError):
    code = "cancelled"


class ToolUnavailable(ToolError):
    """It failed too often of late to be asked again now."""

    code = "unavailable"


class ToolHostDied(ToolError):
    code = "tool_host_died"


class ProtocolError(MidstreamError):
    """Bytes that are not what `btif.md` says. `offset` counts from the first byte of the frame or message."""

    code = "protocol_error"

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(f"{message} (at byte {offset})")
        self.offset = offset


class BtifError(ProtocolError):
    code = "bad_btif_frame"


class EnvelopeError(ProtocolError):
    code = "bad_envelope"
