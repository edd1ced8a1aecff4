"""Predicts, plans and runs pipeline-parallel training.

    import sluice

    scenario = sluice.Scenario(model="llama3-8b", cluster="dgx-h100", pp=4, tp=2, gbs=64, seq_length=8192)
    result = sluice.simulate(scenario)
    print(result.iteration_s, result.bubble_fraction, result.peak_memory_bytes.max())

Times in arrays are integer nanoseconds; attributes that end in ``_s`` are seconds. Wrong input raises InputError with
the text that the command prints, an invalid schedule ScheduleError, and DoesNotFit means that nothing fits in memory.
``sluice.torch`` runs schedules in PyTorch.
"""

from ._core import DoesNotFit, InputError, ScheduleError
from ._core import version as __version__
from ._errors import with_plain_errors as _with_plain_errors
from ._requests import (
    Analysis,
    Calibration,
    Comparison,
    Goodput,
    Plan,
    Slices,
    TimedOp,
    analyze,
    calibrate,
    compare,
    families,
    goodput,
    plan,
    read_ops,
    slice,
)
from ._measured import Correction, MeasuredRun, Table, Woven, WovenPart, fit_correction, shortlist, weave
from ._result import Idle, MemoryCurve, Ops, Result, simulate
from ._scenario import Scenario
from ._schedule import B, F, I, Op, Schedule, W, schedule
from ._sweep import Sweep, sweep

__all__ = [
    "Analysis",
    "B",
    "Calibration",
    "Comparison",
    "Correction",
    "DoesNotFit",
    "F",
    "Goodput",
    "I",
    "Idle",
    "InputError",
    "MeasuredRun",
    "MemoryCurve",
    "Op",
    "Ops",
    "Plan",
    "Result",
    "Scenario",
    "Schedule",
    "ScheduleError",
    "Slices",
    "Sweep",
    "Table",
    "TimedOp",
    "W",
    "Woven",
    "WovenPart",
    "__version__",
    "analyze",
    "calibrate",
    "compare",
    "families",
    "fit_correction",
    "goodput",
    "plan",
    "read_ops",
    "schedule",
    "shortlist",
    "simulate",
    "slice",
    "sweep",
    "weave",
]

for _name in __all__:
    if len(_name) > 1:  # not the ops, which a generator makes by the million
        globals()[_name] = _with_plain_errors(globals()[_name])
