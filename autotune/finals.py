"""The final rounds of one driver: who measures them, which contenders, which start comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.config import StudyConfig
from autotune.rounds import next_final, plan_rounds
from autotune.standing import final_starts
from autotune.stored import StoredStudy
from autotune.supervisors.base import Owner

__all__ = ["Finals"]


class Finals:
    """Planned when the search is over, by the one driver that concludes the study.

    Args:
        finalists: Trial numbers of the finalists, best first.

    Attributes:
        ours: Whether this driver measures them and names the winner.
    """

    def __init__(
        self,
        config: StudyConfig,
        owner: Owner,
        finalists: Callable[[StoredStudy], tuple[int, ...]],
    ) -> None:
        self.ours = False
        self._config = config
        self._owner = owner
        self._finalists = finalists
        self._contenders: tuple[int, ...] | None = None
        self._rounds = range(0)

    def next(
        self,
        stored: StoredStudy,
        host: str,
        *,
        usable: Sequence[str],
        conclude_by: Callable[[], Owner],
    ) -> tuple[int, int] | None:
        """Round and contender that this host should start; None when nothing is left for it.

        Args:
            conclude_by: Who concludes the study; asked once.
        """
        if self._contenders is None:
            self.ours = conclude_by() == self._owner
            self._contenders = self._finalists(stored) if self.ours else ()
            self._rounds = plan_rounds(
                self._contenders, self._config.study.final_rounds, final_starts(stored)
            )
        return next_final(
            self._contenders,
            self._rounds,
            final_starts(stored, owner=self._owner),
            host=host,
            usable_hosts=usable,
        )
