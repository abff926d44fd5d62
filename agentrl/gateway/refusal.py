"""Why a call is not served, before a dialect gives it its own shape."""

from agentrl.errors import GatewayError


class Refusal(GatewayError):
    """An answer that is an error. `code` is OpenAI's word for it where there is one."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


def unauthorized() -> Refusal:
    """The same for secrets that never were and that are no more."""
    return Refusal(401, "invalid_api_key", "unknown or closed session; the API key is the session's secret")


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> Refusal:
    return Refusal(400, code, message, param=param)


def overflow(message: str) -> Refusal:
    return Refusal(400, "context_length_exceeded", message, param="messages")
