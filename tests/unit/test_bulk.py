"""The collector rests while very many values are made, and only then."""

from __future__ import annotations

import gc

import pytest

from autotune.bulk import bulk


def test_the_collector_rests_within_and_works_afterwards() -> None:
    with bulk():
        assert not gc.isenabled()
        with bulk():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_wakes_it_too() -> None:
    with pytest.raises(ZeroDivisionError), bulk():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_has_turned_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with bulk():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
