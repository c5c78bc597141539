"""State and attributes of an Optuna trial by one statement and one transaction.

Optuna's own storage commits each attribute by itself: a trial has a dozen, and each commit waits
for the disk.  To tell a state it reads the whole trial.  Used by `autotune.study` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = ["put_attributes", "state_of"]


def state_of(storage: BaseStorage, study_id: int, number: int) -> str:
    """Name of a trial's state, "" for a trial that the storage does not know."""
    from optuna.storages import RDBStorage
    from optuna.storages._rdb import models

    if not isinstance(storage, RDBStorage):
        try:
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
        except KeyError:
            return ""
        return storage.get_trial(trial_id).state.name
    trial = models.TrialModel.__table__
    asked = sa.select(trial.c.state).where(trial.c.study_id == study_id, trial.c.number == number)
    with storage.engine.connect() as connection:
        state = connection.scalar(asked)
    return "" if state is None else str(state.name)


def put_attributes(
    storage: BaseStorage,
    trial_id: int,
    *,
    user: Mapping[str, Any] | None = None,
    system: Mapping[str, Any] | None = None,
) -> None:
    """Set attributes of a trial that has not ended; those that are there are replaced.

    Raises:
        KeyError: There is no such trial.
        UpdateFinishedTrialError: It has ended.
        SQLAlchemyError: The database refuses.
    """
    from optuna.storages import RDBStorage
    from optuna.storages._rdb import models

    user, system = user or {}, system or {}
    insert = _INSERTS.get(storage.engine.name) if isinstance(storage, RDBStorage) else None
    if insert is None or not isinstance(storage, RDBStorage):
        for key, value in user.items():
            storage.set_trial_user_attr(trial_id, key, value)
        for key, value in system.items():
            storage.set_trial_system_attr(trial_id, key, value)
        return
    trial = models.TrialModel.__table__
    with storage.engine.begin() as connection:
        state = connection.scalar(sa.select(trial.c.state).where(trial.c.trial_id == trial_id))
        if state is None:
            raise KeyError(f"there is no trial {trial_id}")
        storage.check_trial_is_updatable(trial_id, state)
        for model, values in (
            (models.TrialUserAttributeModel, user),
            (models.TrialSystemAttributeModel, system),
        ):
            if not values:
                continue
            made = insert(model.__table__).values(
                [
                    {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
                    for key, value in values.items()
                ]
            )
            connection.execute(
                made.on_conflict_do_update(
                    index_elements=["trial_id", "key"],
                    set_={"value_json": made.excluded.value_json},
                )
            )


_INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""Dialects that can insert or update in one statement."""
