"""Several drivers on one study: who they are, what changed since one has looked, hosts that go.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "autotune_driver",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.JSON(), nullable=False),
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("beat_at_s", sa.Double(), nullable=False),
        sa.Column("left_at_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["autotune_study.id"],
            name=op.f("fk_autotune_driver_study_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_driver")),
        sa.UniqueConstraint("study_id", "key", name=op.f("uq_autotune_driver_study_id")),
    )
    # No batch on tables that others refer to: SQLite would make them anew, and dropping the old
    # one deletes every row that refers to it.
    op.drop_column("autotune_study", "driver")
    for table_name in ("autotune_study", "autotune_trial"):
        column = sa.Column("revision", sa.Integer(), nullable=False, server_default="0")
        op.add_column(table_name, column)
    op.add_column("autotune_study", sa.Column("concluding", sa.JSON(), nullable=True))
    op.create_index("ix_autotune_trial_revision", "autotune_trial", ["study_id", "revision"])
    with op.batch_alter_table("autotune_host") as table:
        table.add_column(
            sa.Column("wanted", sa.String(length=20), nullable=False, server_default="use")
        )
        table.add_column(
            sa.Column("state", sa.String(length=20), nullable=False, server_default="")
        )
        table.add_column(sa.Column("why", sa.Text(), nullable=False, server_default=""))
        table.add_column(sa.Column("driver", sa.JSON(), nullable=True))
        table.alter_column("taken_at_s", existing_type=sa.Double(), nullable=True)


def downgrade() -> None:
    op.execute("UPDATE autotune_host SET taken_at_s = 0 WHERE taken_at_s IS NULL")
    with op.batch_alter_table("autotune_host") as table:
        table.alter_column("taken_at_s", existing_type=sa.Double(), nullable=False)
        for column in ("driver", "why", "state", "wanted"):
            table.drop_column(column)
    op.drop_index("ix_autotune_trial_revision", table_name="autotune_trial")
    op.drop_column("autotune_trial", "revision")
    op.drop_column("autotune_study", "concluding")
    op.drop_column("autotune_study", "revision")
    op.add_column("autotune_study", sa.Column("driver", sa.JSON(), nullable=True))
    op.drop_table("autotune_driver")
