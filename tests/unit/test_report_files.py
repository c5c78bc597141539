"""Every table of the report as a file: nothing lost, nothing rounded, the same in both formats."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from autotune.errors import ConfigError
from autotune.report.files import study_tables, write_tables
from autotune.report.formats import TableFormat
from autotune.report.frames import buckets_frame, proof_frame, starts_frame
from autotune.stored import StoredStudy
from tests.builders import a_definition, a_start, a_study, a_trial
from tests.unit.test_report_page import STUDIES, whole_study

NAMES = {"starts", "buckets", "proof", "coding", "failures", "finalists", "settings"}


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
@pytest.mark.parametrize("form", TableFormat)
def test_every_table_is_a_file_that_reads_as_it_was(
    study: StoredStudy, form: TableFormat, tmp_path: Path
) -> None:
    written = write_tables(study, tmp_path / "deep" / "folder", form)
    assert {path.name for path in written} == {f"{name}.{form}" for name in NAMES}
    assert set(written[0].parent.iterdir()) == set(written)
    for name, frame in study_tables(study).items():
        path = tmp_path / "deep" / "folder" / f"{name}.{form}"
        read = pd.read_csv(path) if form is TableFormat.CSV else pd.read_parquet(path)
        assert list(read.columns) == list(frame.columns)
        assert len(read) == len(frame)
        for column in frame.select_dtypes("number").columns:
            ours, theirs = (one[column].astype(float).tolist() for one in (frame, read))
            assert theirs == pytest.approx(ours, nan_ok=True, rel=0)


def test_the_tables_hold_what_the_page_is_made_of() -> None:
    study = whole_study()
    tables = study_tables(study)
    starts = tables["starts"]
    assert len(starts) == len(starts_frame(study))
    assert len(tables["buckets"]) == len(buckets_frame(study))
    assert len(tables["proof"]) == len(proof_frame(study))
    winner = starts[starts["trial"] == 1]
    assert winner["parameter_budget"].tolist() == [16, 16, 16]
    assert winner["parameter_window"].tolist() == [2048, 2048, 2048]
    assert starts[starts["trial"] == 0]["parameter_window"].isna().all()
    assert tables["coding"]["outcome_wrong"].tolist() == [7, 7]
    failed = {row["trial"]: row for row in tables["failures"].to_dict("records")}
    assert failed[5]["kind"] == "LimitViolated"
    assert failed[5]["message"] == "bucket 60x1 is slow"
    assert failed[2]["log_tail"]
    settings = {row["parameter"]: row for row in tables["settings"].to_dict("records")}
    assert (settings["budget"]["deployed"], settings["budget"]["chosen"]) == ("8", "16")
    assert tables["finalists"]["parameter_budget"].tolist() == [16]


def test_values_of_several_kinds_become_text(tmp_path: Path) -> None:
    definition = a_definition()
    study = a_study(
        a_trial(0, a_start(), reference=True, mode=8),
        a_trial(1, a_start(1.1), mode="auto"),
        a_trial(2, a_start(1.2), mode=None),
        definition={**definition, "parameters": {"mode": {"deployed": 8}}},
    )
    write_tables(study, tmp_path, TableFormat.PARQUET)
    read = pd.read_parquet(tmp_path / "starts.parquet")["parameter_mode"]
    assert read.isna().tolist() == [False, False, True]
    assert read.dropna().tolist() == ["8", "auto"]


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        write_tables(a_study(), tmp_path / "file", TableFormat.CSV)
