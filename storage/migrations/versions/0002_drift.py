"""The change of a start's first bucket, measured again after its last.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("autotune_start", sa.Column("drift", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("autotune_start") as table:
        table.drop_column("drift")
