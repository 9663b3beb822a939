"""Every error that instar raises on purpose.

    InstarError
      ConfigError          a config file, override or flag is wrong
      RequestError         a client's request cannot be served; carries its HTTP status
        ContextError       the prompt does not fit the model's context
        BusyError          the queue is full; carries how long to wait
      EngineError          the engine failed or died; the request may be tried again
      StoreError           the store could not be read or written
      ModelError           a model folder, adapter or chat template is unusable
      JudgeError           a judge could not be asked; the turn can be judged later
      EnvironmentFailure   an environment broke; the attempt says nothing about the model
      ReplyError           a model's reply ends its attempt: it cannot be acted on, and that counts

A message says what was found, what was expected and what to do.
"""

from __future__ import annotations


class InstarError(Exception):
    """The root of the tree above."""


class ConfigError(InstarError, ValueError):
    """A config file, override or flag is wrong."""


class RequestError(InstarError):
    """A client's request cannot be served."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.kind = kind


class ContextError(RequestError):
    """The prompt does not fit the model's context."""

    def __init__(self, found: int, limit: int) -> None:
        super().__init__(
            f"The prompt has {found} tokens, but this model's context holds {limit} "
            "including the reply. Shorten or compact the conversation.",
            param="messages",
            code="context_length_exceeded",
        )


class BusyError(RequestError):
    """The queue is full."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(
            f"{waiting} requests are in progress, which is all this server takes at once. "
            f"Try again in {retry_after} s.",
            status=429,
            code="rate_limit_exceeded",
            kind="rate_limit_error",
        )
        self.retry_after = retry_after


class EngineError(InstarError):
    """The engine failed or died; the request may be tried again."""


class StoreError(InstarError):
    """The store could not be read or written."""


class ModelError(InstarError):
    """A model folder, adapter or chat template is unusable."""


class JudgeError(InstarError):
    """A judge could not be asked; the turn can be judged later."""


class EnvironmentFailure(InstarError):
    """An environment broke; the attempt says nothing about the model."""


class ReplyError(InstarError):
    """A model's reply cannot be acted on at all; the attempt is over, and that counts."""
