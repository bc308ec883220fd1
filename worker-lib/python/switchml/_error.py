"""The one exception of this package."""


class Error(RuntimeError):
    """Why a call failed, in one line. `ranks` are those at fault, as far as they are known."""

    def __init__(self, message: str, ranks: list[int] | None = None) -> None:
        super().__init__(message)
        self.ranks: list[int] = ranks or []
