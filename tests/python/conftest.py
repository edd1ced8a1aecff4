"""Tests of the package sluice, which must be installed (tests/python/check.sh does)."""

import pathlib

import pytest


@pytest.fixture(scope="session")
def source() -> pathlib.Path:
    """The root of the repository."""
    return pathlib.Path(__file__).parents[2]
