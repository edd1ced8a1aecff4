"""Plans, cuts of sequences, calibration, measured steps and comparisons."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Union

from . import _core
from ._result import Result
from ._scenario import Scenario, Source
from ._schedule import Op
from ._table import html_table

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack

Path = Union[str, "os.PathLike[str]"]


class PlanKeys(TypedDict, total=False):
    """What a plan searches: the flags of ``sluice plan``. Lists restrict what is tried.

    ``refine=False`` does not search the partitions of the fastest configurations.
    """

    gpus: int
    tp: Sequence[int]
    cp: Sequence[int]
    pp: Sequence[int]
    dp: Sequence[int]
    ep: Sequence[int]
    etp: Sequence[int]
    vpp: Sequence[int]
    mbs: Sequence[int]
    slices: Sequence[int]
    recompute: Sequence[str]
    recompute_num_layers: Sequence[int]
    schedules: Sequence[str]
    runs_on: str
    use_distributed_optimizer: Sequence[bool]
    overlap_grad_reduce: Sequence[bool]
    overlap_param_gather: Sequence[bool]
    use_tp_pp_dp_mapping: Sequence[bool]
    slicing: str
    no_sequence_parallel: bool
    even_stages: bool
    all: bool
    refine: bool
    top: int
    shortlist: int
    memory_margin: float


_SPACE = ("gpus", "tp", "cp", "pp", "dp", "ep", "etp", "vpp", "mbs", "slices", "recompute", "recompute_num_layers")
_YES_NO = ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "use_tp_pp_dp_mapping")


class _Document:
    """A JSON document of the command as an object: ``self[key]``."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = dict(document)

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def keys(self) -> Any:
        return self.document.keys()

    def __repr__(self) -> str:
        return f"<sluice.{type(self).__name__}: {', '.join(self.document)}>"


class Plan(_Document):
    """A searched plan: the document of ``sluice plan --json`` ("sluice.plan/1")."""

    def __init__(self, document: Mapping[str, Any], base: Scenario) -> None:
        super().__init__(document)
        self._base = base

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The ranking of configurations, fastest first."""
        rows: list[dict[str, Any]] = self.document["ranking"]
        return rows

    def __len__(self) -> int:
        return len(self.rows)

    def scenario(self, row: int = 0) -> Scenario:
        """Returns the scenario of a configuration of the ranking."""
        return self._base._with_flags(shlex.split(self.rows[row]["flags"]))

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the ranking as a table."""
        import pandas

        return pandas.DataFrame(self.rows)

    def _repr_html_(self) -> str:
        flat = [
            {key: value for key, value in row.items() if not isinstance(value, (dict, list))} for row in self.rows[:10]
        ]
        return html_table(flat)


def plan(scenario: Source, /, **keys: Unpack[PlanKeys]) -> Plan:
    """Searches all configurations of a model on a cluster for the fastest that fits in memory.

    The keys of the scenario that a plan chooses are ignored. Ctrl-C ends the search. Raises InputError, and DoesNotFit
    if no configuration fits.
    """
    base = scenario if isinstance(scenario, Scenario) else Scenario(scenario)
    request = _core.PlanRequest()
    space = request.space
    for key, value in keys.items():
        if key in _YES_NO:
            values = value if isinstance(value, Sequence) else [value]
            setattr(request, key, ["yes" if each else "no" for each in values])
        elif key in _SPACE:
            setattr(space, key, value if key == "gpus" or isinstance(value, Sequence) else [value])
        elif key in PlanKeys.__annotations__:
            setattr(request, key, value)
        else:
            raise TypeError(f"plan: unexpected keyword '{key}'")
    request.space = space
    return Plan(json.loads(_core.plan(base._document, request)), base)


class Goodput(_Document):
    """A training run with failures: the document of ``sluice goodput --json`` ("sluice.goodput/1")."""

    def __init__(self, document: Mapping[str, Any], svg: str, trace: str) -> None:
        super().__init__(document)
        self.svg = svg  #: picture of the median run: progress, use of time and failures
        self.trace = trace  #: the same as a Chrome trace

    @property
    def goodput(self) -> float:
        """The mean fraction of the wall clock that makes progress which is not lost."""
        mean: float = self.document["goodput"]["mean"]
        return mean

    @property
    def uses(self) -> dict[str, float]:
        """The fraction of the wall clock by use. The fractions add up to 1."""
        return {row["use"]: row["fraction"] for row in self.document["uses"]}

    def _repr_svg_(self) -> str:
        return self.svg


def goodput(scenario: Source = None, /, **keys: object) -> Goodput:
    """Simulates whole training runs with failures, checkpoints and recoveries.

    ``scenario`` gives the time of an iteration, also without some replicas; with none, ``gpus``, ``dp`` and
    ``step_time`` do. Keywords are the flags of ``sluice goodput`` with underscores: ``days=54``, ``policy="shrink"``,
    ``repair="exp:2h"``, ``quick=True``. Raises InputError.
    """
    sizes = {key: keys.pop(key) for key in ("gpus", "dp") if key in keys}
    base = Scenario({"parallelism": sizes} if scenario is None else scenario)
    if scenario is not None:
        base = Scenario(base, **sizes)  # type: ignore[arg-type]
    flags = []
    for key, value in keys.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    text, svg, trace = _core.goodput(base._document, flags)
    return Goodput(json.loads(text), svg, trace)


class Slices(_Document):
    """A cut of sequences: the document of ``sluice slice --json`` ("sluice.slice/1")."""

    def __init__(self, document: Mapping[str, Any], lengths: list[int]) -> None:
        super().__init__(document)
        self.lengths = lengths  #: tokens of each slice; empty for a joint cut and with balance


def slice(
    scenario: Source,
    /,
    *,
    times: Path = "",
    schedule: str = "",
    slices: int = 0,
    max_slices: int = 0,
    granularity: int = 0,
    balanced: bool = False,
    balance: bool = False,
    backward: bool = False,
    joint: int = 0,
    algorithm1_ms: float = -1,
    time_budget_s: float = -1,
) -> Slices:
    """Cuts sequences into slices: the fastest for TeraPipe, for a ``schedule``, or ``balanced`` by FLOPs.

    With ``balance``, compares packings and orders of the scenario's documents of different length instead.

    The arguments are the flags of ``sluice slice``; ``schedule`` is --for. With ``times``, a table of slice times or
    measured chunks, the scenario has the sequence length and the number of ranks only.
    """
    base = scenario if isinstance(scenario, Scenario) else Scenario(scenario)
    request = _core.SliceRequest()
    request.times = os.fspath(times)
    request.schedule = schedule
    request.slices = slices
    request.max_slices = max_slices
    request.granularity = granularity
    request.balanced = balanced
    request.balance = balance
    request.backward = backward
    request.joint = joint
    request.algorithm1_ms = algorithm1_ms
    request.time_budget_s = time_budget_s
    lengths, document = _core.slice(base._document, request)
    return Slices(json.loads(document), lengths)


class Calibration(_Document):
    """Fitted constants: the document of ``sluice calibrate --json``."""


def calibrate(
    measured: Union[Path, Sequence[Path]],
    scenario: Source = None,
    *,
    constants: Sequence[str] = (),
    ignore_columns: Sequence[str] = (),
    folds: int = 10,
    skip: int = 2,
    output: Path = "",
) -> Calibration:
    """Fits the analytic cost model to measured iterations, kernels or collectives, as ``sluice calibrate``.

    ``measured`` are CSV tables, logs of Megatron-LM or kernel times; ``output`` is the file, folder or prefix to write.
    """
    tables = [measured] if isinstance(measured, (str, os.PathLike)) else list(measured)
    base = scenario if isinstance(scenario, Scenario) else Scenario(scenario)
    document = _core.calibrate(
        [os.fspath(table) for table in tables],
        base._document,
        list(constants),
        list(ignore_columns),
        folds,
        skip,
        os.fspath(output),
    )
    return Calibration(json.loads(document))


class Analysis(_Document):
    """Why measured steps were slow: the document of ``sluice analyze --json``.

    "sluice.analysis/1"; of kernels without ops of a pipeline "sluice.profile/1", without scenario and heat maps.
    """

    def __init__(self, document: Mapping[str, Any], scenario: str, heat_maps: str) -> None:
        super().__init__(document)
        self._scenario = scenario
        self.heat_maps = heat_maps  #: SVG: the times of the passes by rank, replica and step

    @property
    def scenario(self) -> Scenario:
        """A scenario with the measured times as costs, to predict other schedules with."""
        if not self._scenario:
            raise ValueError("the traces have kernels only: no scenario without ops of a pipeline")
        return Scenario.from_json(self._scenario)

    def _repr_html_(self) -> str | None:
        return self.heat_maps or None


def _paths(paths: Union[Path, Sequence[Path]]) -> str:
    if isinstance(paths, (str, os.PathLike)):
        return os.fspath(paths)
    return ",".join(os.fspath(path) for path in paths)


def analyze(
    timeline: Union[Path, Sequence[Path]], *, names: Path = "", all_steps: bool = False, gpus: int | None = None
) -> Analysis:
    """Replays measured steps and finds the causes of slow ones, as ``sluice analyze``."""
    return Analysis(*_analyzed(_core.analyze(_paths(timeline), os.fspath(names), all_steps, gpus)))


def _analyzed(parts: tuple[str, str, str]) -> tuple[dict[str, Any], str, str]:
    return json.loads(parts[0]), parts[1], parts[2]


class Comparison(_Document):
    """Two timelines op by op: the document of ``sluice compare --json`` ("sluice.comparison/1")."""


def compare(
    first: Union[Path, Sequence[Path], Result],
    second: Union[Path, Sequence[Path], Result],
    *,
    by_kind: bool = False,
    top: int = 10,
    step: int | None = None,
) -> Comparison:
    """Compares two runs, such as a prediction and the traces of PyTorch's profiler, one file per rank."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name, run in (("first", first), ("second", second)):
            if isinstance(run, Result):
                path = os.path.join(folder, name + ".json")
                run.write_trace(path)
                names.append(path)
            else:
                names.append(_paths(run))
        return Comparison(json.loads(_core.compare(names[0], names[1], by_kind, top, step)))


class TimedOp(NamedTuple):
    """An op of a measured run."""

    op: Op
    rank: int
    start: int  #: nanoseconds
    end: int


def read_ops(trace: Union[Path, Sequence[Path]], step: int | None = None) -> list[TimedOp]:
    """Returns the compute ops of a trace, of Sluice or of PyTorch's profiler, by rank and start.

    The two ops of a joint block have the same times.
    """
    out = [
        TimedOp(Op(kind, microbatch, stage, part), rank, start, end)
        for kind, rank, microbatch, stage, part, start, end in _core.rows(_paths(trace), step)
        if kind in ("F", "B", "I", "W", "S", "T")
    ]
    return sorted(out, key=lambda row: (row.rank, row.start))


def families() -> list[dict[str, Any]]:
    """Returns the schedule families with their properties, as ``sluice schedules`` lists them."""
    return _core.families()
