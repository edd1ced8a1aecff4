"""Tables of measured runs, and what is fitted to them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Union

from . import _core
from ._scenario import Scenario, Source


class MeasuredRun(NamedTuple):
    """A measured iteration: a row of a table."""

    place: str  #: "runs.csv: row 7"
    setting: str  #: "tp 8, pp 2, dp 16, micro_batch 4"
    scenario: Scenario
    seconds: float  #: 0 without a time, or where it ran out of memory
    out_of_memory: bool


class Table:
    """A CSV table. Rows count from 0; errors name the file, the row (from 1) and the column."""

    def __init__(self, source: Union[str, os.PathLike[str], Table]) -> None:
        """Reads a file, or copies a table."""
        self._table: _core.Table = _core.Table(source._table if isinstance(source, Table) else os.fspath(source))

    def __len__(self) -> int:
        return self._table.num_rows

    @property
    def source(self) -> str:
        """The path of the file."""
        return self._table.source

    @property
    def columns(self) -> list[str]:
        return self._table.columns

    def drop(self, *columns: str) -> None:
        """Removes columns, where there are any of these names."""
        for column in columns:
            self._table.drop(column)

    def check_columns(self) -> None:
        """Raises InputError for a column that ``run`` does not know, or two with the same meaning."""
        self._table.check_columns()

    def place(self, row: int) -> str:
        """Returns "runs.csv: row 7"."""
        return self._table.place(row)

    def text(self, row: int, column: str) -> str:
        return self._table.text(row, column)

    def number(self, row: int, column: str, low: float, high: float) -> float:
        """Returns a cell as a number. Raises InputError unless it is one from ``low`` to ``high``."""
        return self._table.number(row, column, low, high)

    def integer(self, row: int, column: str, low: int = 1, high: int = 1 << 30) -> int:
        """Returns a cell as a whole number. Raises InputError unless it is one from ``low`` to ``high``."""
        return self._table.integer(row, column, low, high)

    def fail(self, row: int, column: str, rule: str) -> None:
        """Raises InputError that names a cell and what it should be."""
        self._table.fail(row, column, rule)

    def run(self, row: int, scenario: Source = None, *, timed: bool = True) -> MeasuredRun:
        """Returns the run of a row, whose cells override ``scenario``: the columns of ``sluice calibrate``.

        Columns that calibrate does not know are ignored. ``timed=False`` does not read a measured time.
        """
        base = scenario if isinstance(scenario, Scenario) else Scenario(scenario)
        text, setting, seconds, out_of_memory = self._table.run(row, base._document.text(), base._folder, timed)
        place = self.place(row)
        own = Scenario.from_json(text, base._folder, place)
        return MeasuredRun(place, setting, own, seconds, out_of_memory)


class Correction(NamedTuple):
    """Measured time as ``scale`` x predicted time + ``fixed_s``."""

    scale: float
    fixed_s: float
    shortest_s: float  #: the shortest prediction that it was fitted to

    def at(self, predicted_s: float) -> float:
        """Returns the corrected time: below ``shortest_s``, a negative fixed time shrinks in proportion."""
        on_line = max(predicted_s, self.shortest_s) if self.fixed_s < 0 else predicted_s
        return (self.scale * on_line + self.fixed_s) * (predicted_s / on_line)


def fit_correction(rows: Sequence[tuple[float, float]], terms: str = "automatic") -> Correction:
    """Fits a correction to predicted and measured seconds.

    ``terms``: "automatic": what other settings are likely to have in common with the rows, as ``sluice calibrate``;
    or "scale" or "fixed" by least squares of relative errors.
    """
    return Correction(*_core.fit_correction(list(rows), terms))


def shortlist(
    rows: Sequence[tuple[float, int]], size: int, *, group_error: float = 0.1, own_error: float = 0.04
) -> list[int]:
    """Returns the indices of ``size`` configurations to measure, in order, so that the fastest is likely among them.

    ``rows`` are predicted seconds and groups whose predictions err alike; the errors are standard deviations of the
    logarithm of measured over predicted times.
    """
    return _core.shortlist(list(rows), size, group_error, own_error)


class WovenPart(NamedTuple):
    """A part of a layer in an overlapped block, with its times in seconds from the block's start."""

    part: str  #: "attention(F)"
    layer: int
    start_s: float
    end_s: float
    after: int  #: index of the part that it waits for; -1: none


class Woven(NamedTuple):
    """An overlapped block."""

    seconds: float
    parts: list[WovenPart]


def weave(
    forward: Sequence[Mapping[str, float]], backward: Sequence[Mapping[str, float]], order: str = "dualpipe"
) -> Woven:
    """Overlaps the layers of a forward and of a backward: seconds by part ("dispatch(B)") of each layer of a pass.

    ``order`` is a weave of ``sluice weave``, or its list of parts.
    """
    seconds, parts = _core.weave([dict(layer) for layer in forward], [dict(layer) for layer in backward], order)
    return Woven(seconds, [WovenPart(*part) for part in parts])
