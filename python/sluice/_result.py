"""Predictions."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np
import numpy.typing as npt

from . import _core
from ._keys import SizeKeys
from ._scenario import Scenario, Source
from ._schedule import Schedule

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack

Array = npt.NDArray[Any]

OP_KINDS = ("F", "B", "I", "W", "S", "T")
VERTEX_KINDS = ("compute", "joint", "recompute", "transfer", "collective", "optimizer")


@dataclass(frozen=True, eq=False)
class Ops:
    """The vertices of a graph as arrays of one length: compute ops, transfers, collectives and optimizer steps.

    All but ``rank`` are read-only views of the prediction, without a copy. ``ops[mask]`` selects rows.
    """

    start: Array  #: nanoseconds, int64
    end: Array  #: nanoseconds, int64; of a transfer: when it leaves the link
    rank: Array  #: of a transfer: the sender
    kind: Array  #: index into OP_KINDS: F, B, I, W
    vertex: Array  #: index into VERTEX_KINDS; 0: a compute op, 1: a joint block, whose first op the others describe
    microbatch: Array  #: of collectives and optimizer steps: the step
    slice: Array
    stage: Array

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: Any) -> Ops:
        return Ops(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def compute(self) -> Array:
        """Mask of the ops of the schedule (joint blocks included)."""
        return cast(Array, self.vertex <= 1)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a table with kinds as text."""
        import pandas

        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        columns["kind"] = np.asarray(OP_KINDS)[self.kind]
        columns["vertex"] = np.asarray(VERTEX_KINDS)[self.vertex]
        return pandas.DataFrame(columns)


@dataclass(frozen=True, eq=False)
class Idle:
    """The idle intervals of all ranks, by rank and time."""

    start: Array  #: nanoseconds
    end: Array
    rank: Array
    from_rank: Array  #: the rank that is waited for; -1: none in particular
    cause: Array  #: index into ``CAUSES``

    CAUSES = tuple(_core.idle_causes())


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """The memory of a rank: ``bytes[i]`` by class from ``time[i]`` (nanoseconds) on."""

    time: Array
    bytes: Array

    CLASSES = tuple(_core.memory_classes())

    @property
    def total(self) -> Array:
        return cast(Array, self.bytes.sum(axis=1))


_FIELDS = (
    "start end microbatch stage slice op kind lane lane_rank critical_path idle_by_cause peak_bytes has_bytes "
    "iteration_s makespan_s period_s span_s bubble_fraction bubble_over_ideal tokens_per_s "
    "model_tflops_per_device mfu hardware_tflops_per_device needed_bytes memory_at_peak resolved transfer_bytes "
    "fits busy_s peak_in_flight title scenario error_class assumptions"
).split()


class _Snapshot:
    """The data of a prediction without its graph, as it is pickled."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.__dict__.update(data)

    def memory_curve(self, rank: int) -> tuple[Array, Array]:
        return cast("tuple[Array, Array]", self.__dict__["memory"][rank])

    def idle(self) -> tuple[Array, ...]:
        return cast("tuple[Array, ...]", self.__dict__["idle_rows"])


class Result:
    """The predicted time and memory of one training iteration.

    Arrays are views of the prediction. A result pickles with its arrays; after that, pictures, traces and ``to_dict``
    simulate it once more.
    """

    def __init__(self, core: _core.Simulated) -> None:
        self._data: Any = core
        self._core: _core.Simulated | None = core
        self._ops: Ops | None = None

    @property
    def ops(self) -> Ops:
        """Start, end, rank, kind, microbatch, slice and stage of every vertex of the graph."""
        if self._ops is None:
            of = self._data
            rank = of.lane_rank[of.lane]
            rank.flags.writeable = False
            self._ops = Ops(of.start, of.end, rank, of.op, of.kind, of.microbatch, of.slice, of.stage)
        return self._ops

    @property
    def iteration_s(self) -> float:
        """Iteration time, after the scenario's calibration if it has one."""
        return float(self._data.iteration_s)

    @property
    def error_class(self) -> dict[str, Any] | None:
        """The class of measured runs that this run is one of, with the interval of its iteration time.

        As in ``sluice simulate --json``: ``description``, ``class``, ``rows``, ``low_s``, ``high_s`` (8 of 10 such runs are
        between) and others. None for runs that no class covers, with given times, or with a calibration.
        """
        return cast("dict[str, Any] | None", json.loads(self._data.error_class))

    @property
    def assumptions(self) -> list[dict[str, str]]:
        """What the prediction rests on that the scenario does not set: ``setting``, ``value`` and ``source``.

        As in ``sluice simulate --json``; with given times, those that are not given.
        """
        return cast("list[dict[str, str]]", json.loads(self._data.assumptions))

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end, with collectives and optimizer steps."""
        return float(self._data.makespan_s)

    @property
    def period_s(self) -> float:
        """Time per batch when batches follow without a barrier."""
        return float(self._data.period_s)

    @property
    def span_s(self) -> float:
        """The longest time from the first to the last op of one rank."""
        return float(self._data.span_s)

    @property
    def bubble_fraction(self) -> float:
        """Idle fraction of the time of all ranks."""
        return float(self._data.bubble_fraction)

    @property
    def bubble_over_ideal(self) -> float:
        """Makespan over the work of the busiest rank, minus 1."""
        return float(self._data.bubble_over_ideal)

    @property
    def tokens_per_s(self) -> float:
        """Over all devices; 0 without a sequence length."""
        return float(self._data.tokens_per_s)

    @property
    def model_tflops_per_device(self) -> float:
        """Without recomputation; 0 without a model."""
        return float(self._data.model_tflops_per_device)

    @property
    def hardware_tflops_per_device(self) -> float:
        """With recomputation; 0 without a model."""
        return float(self._data.hardware_tflops_per_device)

    @property
    def mfu(self) -> float:
        """Model FLOPs as a fraction of the peak; 0 without a cluster."""
        return float(self._data.mfu)

    @property
    def fits(self) -> bool | None:
        """Whether the run fits in memory; None without a model and a cluster."""
        return cast("bool | None", self._data.fits)

    @property
    def busy_s(self) -> Array:
        """Compute time by rank."""
        return np.asarray(self._data.busy_s)

    @property
    def peak_in_flight(self) -> Array:
        """By rank: the maximum of stored activations, in microbatches through 1/ranks of the layers."""
        return np.asarray(self._data.peak_in_flight)

    @property
    def peak_memory_bytes(self) -> Array:
        """By rank; empty without a model."""
        return cast(Array, self._data.peak_bytes if self._data.has_bytes else np.empty(0, np.int64))

    @property
    def memory_at_peak(self) -> dict[str, Array]:
        """Bytes by class (``MemoryCurve.CLASSES``) at each rank's peak, each by rank."""
        table = np.asarray(self._data.memory_at_peak)
        return {name: table[:, i] for i, name in enumerate(MemoryCurve.CLASSES)}

    @property
    def needed_bytes(self) -> int | None:
        """Device memory for the largest peak, with the allocator's overhead; None without a model and a cluster."""
        return cast("int | None", self._data.needed_bytes)

    @property
    def transfer_bytes(self) -> float:
        """Bytes between pipeline ranks per iteration, over all replicas."""
        return float(self._data.transfer_bytes)

    @property
    def resolved(self) -> dict[str, Any]:
        """What names and defaults resolve to: sizes, ``precision``, and facts of the ``model`` and of the ``gpu``."""
        return cast("dict[str, Any]", self._data.resolved)

    def op_s(self, kind: str, stage: int, slice: int = 0) -> float:
        """Returns the seconds of an op, "F" or "B", with the recomputation before a B."""
        return self._live().op_s(kind, stage, slice)

    def terapipe_slices(self, granularity: int) -> list[int]:
        """Returns the lengths of the slices with which TeraPipe takes these microbatches through the pipeline fastest.

        They are multiples of ``granularity`` tokens.
        """
        return self._live().terapipe_slices(granularity)

    def memory(self, rank: int) -> MemoryCurve:
        """Returns the memory curve of a rank; empty if it was not kept."""
        return MemoryCurve(*self._data.memory_curve(rank))

    @property
    def idle(self) -> Idle:
        """Every idle interval with its cause."""
        return Idle(*self._data.idle())

    @property
    def idle_by_cause_s(self) -> dict[str, Array]:
        """Idle seconds by cause, each by rank."""
        table = self._data.idle_by_cause
        return {cause: table[:, i] / 1e9 for i, cause in enumerate(Idle.CAUSES)}

    @property
    def critical_path(self) -> Array:
        """Indices into ``ops`` of a critical path, in order of time."""
        return cast(Array, self._data.critical_path)

    def slack(self) -> Array:
        """Returns, by row of ``ops``, by how much it could end later at the same makespan, in nanoseconds."""
        return self._live().slack()

    @property
    def scenario(self) -> Scenario:
        return Scenario(json.loads(self._data.scenario))

    @property
    def schedule(self) -> Schedule:
        if isinstance(self._data, _Snapshot):
            return Schedule.from_json(self._data.__dict__["schedule"])
        return Schedule(self._data.schedule)

    def to_dict(self) -> dict[str, Any]:
        """Returns the document of ``sluice simulate --json`` ("sluice.simulation/1")."""
        return cast("dict[str, Any]", json.loads(self._live().json()))

    def svg(self, width: float = 720, memory: bool = True, transfers: bool = False) -> str:
        """Returns a figure of the timeline for a paper."""
        return self._live().svg(width, memory, transfers)

    def report(self) -> str:
        """Returns the report as one HTML page."""
        return self._live().report(False)

    def gantt(self, width: int = 100) -> str:
        """Returns the timeline as text, ``width`` columns wide."""
        return self._live().gantt(width)

    def write_trace(self, path: str | os.PathLike[str], idle: bool = False) -> None:
        """Writes a Chrome trace for Perfetto; gzipped if the name ends in .gz. ``idle`` adds idle time."""
        self._live().write_trace(os.fspath(path), idle)

    def write_ops(self, path: str | os.PathLike[str]) -> None:
        """Writes the CSV file of ``sluice simulate --ops``."""
        self._live().write_ops(os.fspath(path))

    def _live(self) -> _core.Simulated:
        if self._core is None:
            self._core = _core.simulate(self.scenario._document, self.schedule._schedule, True)
        return self._core

    def __repr__(self) -> str:
        numbers = f"iteration {self.iteration_s:.4g} s, bubble {100 * self.bubble_fraction:.1f} %"
        return f"<sluice.Result {self._data.title}: {numbers}>"

    def _repr_html_(self) -> str:
        ranks = len(self._data.busy_s)
        page = html.escape(self._live().report(True), quote=True)
        height = 420 + 2 * min(ranks, 16) * 22
        style = f"width:100%;height:{height}px;border:0"
        return f'<iframe srcdoc="{page}" style="{style}" title="{html.escape(self._data.title)}"></iframe>'

    def __getstate__(self) -> dict[str, Any]:
        of = self._data
        data = {name: getattr(of, name) for name in _FIELDS}
        data = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in data.items()}
        ranks = len(of.busy_s)
        data["memory"] = [tuple(np.array(part) for part in of.memory_curve(rank)) for rank in range(ranks)]
        data["idle_rows"] = tuple(np.array(column) for column in of.idle())
        data["schedule"] = self.schedule.to_json()
        return data

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._data = _Snapshot(state)
        self._core = None
        self._ops = None


def simulate(
    scenario: Source = None,
    /,
    *,
    schedule: Union[str, Schedule, None] = None,
    memory: bool = True,
    **keys: Unpack[SizeKeys],
) -> Result:
    """Returns the predicted time, bubbles and memory of one training iteration.

    ``scenario`` is a Scenario or what its constructor takes; keywords override its keys. ``schedule`` is a family, a
    file, "auto", or a Schedule, whose numbers of ranks and microbatches replace those of the scenario. Without
    ``memory``, memory curves are not kept, only peaks. Releases the global lock. Raises InputError, ScheduleError for a
    schedule that deadlocks, and DoesNotFit if no automatic schedule fits in memory.
    """
    core = schedule._schedule if isinstance(schedule, Schedule) else None
    if isinstance(schedule, str):
        scenario = Scenario(scenario, schedule=schedule, **keys)
    elif not isinstance(scenario, Scenario) or keys:
        scenario = Scenario(scenario, **keys)
    return Result(_core.simulate(scenario._document, core, memory))
