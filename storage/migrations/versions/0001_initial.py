"""First schema: studies, hosts, trials, starts, buckets, evidence, coding.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "autotune_study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("driver", sa.JSON(), nullable=True),
        sa.Column("verdict", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_study")),
        sa.UniqueConstraint("name", name=op.f("uq_autotune_study_name")),
    )
    op.create_table(
        "autotune_host",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("original", sa.JSON(), nullable=False),
        sa.Column("lease_id", sa.String(length=64), nullable=False),
        sa.Column("taken_at_s", sa.Double(), nullable=False),
        sa.Column("restored_at_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["autotune_study.id"],
            name=op.f("fk_autotune_host_study_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_host")),
        sa.UniqueConstraint("study_id", "host", name=op.f("uq_autotune_host_study_id")),
    )
    op.create_table(
        "autotune_trial",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("reference", sa.Boolean(), nullable=False),
        sa.Column("retry_of", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("told", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["autotune_study.id"],
            name=op.f("fk_autotune_trial_study_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_trial")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_autotune_trial_study_id")),
    )
    op.create_table(
        "autotune_start",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("claim_id", sa.String(length=64), nullable=False),
        sa.Column("nonce", sa.String(length=200), nullable=False),
        sa.Column("owner", sa.JSON(), nullable=False),
        sa.Column("argv", sa.JSON(), nullable=False),
        sa.Column("ending", sa.String(length=20), nullable=True),
        sa.Column("invocation_id", sa.String(length=64), nullable=False),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("fingerprint", sa.JSON(), nullable=False),
        sa.Column("texts", sa.JSON(), nullable=False),
        sa.Column("stop_s", sa.Double(), nullable=False),
        sa.Column("load_s", sa.Double(), nullable=False),
        sa.Column("measure_s", sa.Double(), nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double(), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("score_low", sa.Double(), nullable=True),
        sa.Column("score_high", sa.Double(), nullable=True),
        sa.Column("score_ratio", sa.Double(), nullable=True),
        sa.Column("score_gate", sa.Double(), nullable=True),
        sa.Column("violations", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["autotune_trial.id"],
            name=op.f("fk_autotune_start_trial_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_start")),
        sa.UniqueConstraint("claim_id", name=op.f("uq_autotune_start_claim_id")),
    )
    op.create_index("ix_autotune_start_trial_id", "autotune_start", ["trial_id"], unique=False)
    op.create_table(
        "autotune_bucket",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("start_id", sa.Integer(), nullable=False),
        sa.Column("context_tokens", sa.Integer(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("output_tok_per_s", sa.Double(), nullable=False),
        sa.Column("low", sa.Double(), nullable=False),
        sa.Column("high", sa.Double(), nullable=False),
        sa.Column("accept_length", sa.Double(), nullable=True),
        sa.Column("ttft_ms", sa.Double(), nullable=False),
        sa.Column("tpot_ms", sa.Double(), nullable=False),
        sa.Column("valid", sa.Boolean(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["start_id"],
            ["autotune_start.id"],
            name=op.f("fk_autotune_bucket_start_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_bucket")),
        sa.UniqueConstraint(
            "start_id", "context_tokens", "concurrency", name=op.f("uq_autotune_bucket_start_id")
        ),
    )
    op.create_table(
        "autotune_coding",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("start_id", sa.Integer(), nullable=False),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("outcomes", sa.JSON(), nullable=False),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["start_id"],
            ["autotune_start.id"],
            name=op.f("fk_autotune_coding_start_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_coding")),
        sa.UniqueConstraint("start_id", name=op.f("uq_autotune_coding_start_id")),
    )
    op.create_table(
        "autotune_evidence",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("start_id", sa.Integer(), nullable=False),
        sa.Column("link", sa.String(length=80), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("seen", sa.Text(), nullable=False),
        sa.Column("raw", sa.Text(), nullable=False),
        sa.Column("ok", sa.Boolean(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["start_id"],
            ["autotune_start.id"],
            name=op.f("fk_autotune_evidence_start_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_evidence")),
    )
    op.create_index(
        "ix_autotune_evidence_start_id", "autotune_evidence", ["start_id"], unique=False
    )


def downgrade() -> None:
    op.drop_index("ix_autotune_evidence_start_id", table_name="autotune_evidence")
    op.drop_table("autotune_evidence")
    op.drop_table("autotune_coding")
    op.drop_table("autotune_bucket")
    op.drop_index("ix_autotune_start_trial_id", table_name="autotune_start")
    op.drop_table("autotune_start")
    op.drop_table("autotune_trial")
    op.drop_table("autotune_host")
    op.drop_table("autotune_study")
