"""Predictions of many scenarios."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from ._keys import ScenarioKeys
from ._scenario import _NAMES, Scenario, Source, _settings
from ._table import html_table

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack


class Sweep:
    """The predictions of all combinations of values. A row is a dictionary: the keys, then the results.

    Rows that could not be predicted have an ``error`` instead of results.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.keys: list[str] = [key.replace("-", "_") for key in document["keys"]]
        self.rows: list[dict[str, Any]] = []
        for point in document["points"]:
            rest = {name: value for name, value in point.items() if name != "values"}
            self.rows.append({**dict(zip(self.keys, point["values"])), **rest})

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def best(self) -> dict[str, Any]:
        """Returns the row with the most tokens per second (without tokens: the shortest iteration) that fits."""
        rows = [row for row in self.rows if "iteration_s" in row and row.get("fits", True)]
        if not rows:
            raise _core.DoesNotFit("sweep: no combination can be simulated and fits in memory")
        return min(rows, key=lambda row: (-(row["tokens_per_s"] or 0), row["iteration_s"]))

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the rows as a table."""
        import pandas

        return pandas.DataFrame(self.rows)

    def _repr_html_(self) -> str:
        return html_table(self.rows)


def sweep(
    scenario: Source = None, /, axes: Mapping[str, Sequence[Any]] | None = None, **keys: Unpack[ScenarioKeys]
) -> Sweep:
    """Predicts every combination of the values of ``axes``, in parallel.

    sluice.sweep("gpt3.json", {"vpp": [1, 2, 3], "mbs": [1, 2]}).to_pandas()

    Axes are named as the keywords of Scenario; in a sweep over schedules, other keys are adapted to the family,
    and what is not specified (chunks, slices, layers per stage) is chosen for it with the analytic cost model.
    """
    base = scenario if isinstance(scenario, Scenario) and not keys else Scenario(scenario, **keys)
    rows: list[tuple[str, list[str]]] = []
    for key, values in (axes or {}).items():
        rows.append((_NAMES.get(key, key), [_settings(key, value)[0][1] for value in values]))
    return Sweep(json.loads(_core.sweep(base._document, rows)))
