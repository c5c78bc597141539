"""What is open until it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Closing"]


class Closing(ABC):
    """Closed at the end of its `with` block, however that ends."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
