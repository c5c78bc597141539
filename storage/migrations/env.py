"""Alembic environment: our tables only, with a version table of our own beside Optuna's."""

from __future__ import annotations

from alembic import context

from autotune.records import Base
from autotune.storage import VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=lambda name, kind, parents: kind != "table" or str(name).startswith("autotune_"),
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
