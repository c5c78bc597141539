"""The judgement on a start's greedy texts; how code was found in answers, and where it ran.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("autotune_start", sa.Column("lossless", sa.JSON(), nullable=True))
    op.add_column("autotune_coding", sa.Column("rules", sa.JSON(), nullable=True))
    op.add_column("autotune_coding", sa.Column("sandbox", sa.String(length=20), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("autotune_coding") as table:
        table.drop_column("sandbox")
        table.drop_column("rules")
    with op.batch_alter_table("autotune_start") as table:
        table.drop_column("lossless")
