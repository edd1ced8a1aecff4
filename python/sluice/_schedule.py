"""Schedules: the order of the ops of each rank."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, Union

from . import _core
from ._keys import SizeKeys
from ._scenario import Scenario

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._result import Result


class Op(NamedTuple):
    """A compute op. ``kind``: F forward, B backward, I input gradient only, W weight gradient only."""

    kind: str
    microbatch: int
    stage: int
    slice: int = 0

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}" + (f".{self.slice}" if self.slice else "")


def F(microbatch: int, stage: int, slice: int = 0) -> Op:
    """Returns the forward of a microbatch (or of one slice of its sequence) on a stage."""
    return Op("F", microbatch, stage, slice)


def B(microbatch: int, stage: int, slice: int = 0) -> Op:
    """Returns the backward: input and weight gradients in one op."""
    return Op("B", microbatch, stage, slice)


def I(microbatch: int, stage: int, slice: int = 0) -> Op:  # noqa: E743
    """Returns the input gradient; a W with the weight gradient must follow."""
    return Op("I", microbatch, stage, slice)


def W(microbatch: int, stage: int, slice: int = 0) -> Op:
    """Returns the weight gradient, after an I."""
    return Op("W", microbatch, stage, slice)


Step = Union[Op, Sequence[Op]]  # two ops form a joint block


def _checked_count(value: Any, what: str, least: int = 1) -> int:
    """Returns a whole number from ``least`` on. Raises InputError naming ``what``."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or operator.index(value) < least:
        raise _core.InputError(f"{what}: expected a whole number of at least {least}, got {value!r}")
    return operator.index(value)


def _checked_op(op: Op, rank: int) -> Op:
    """Returns an op with a letter and whole numbers. Raises InputError naming it."""
    if not isinstance(op.kind, str):
        raise _core.InputError(f"rank {rank}: {op!r}: kind: expected F, B, I or W")
    counts = ((op.microbatch, "microbatch"), (op.stage, "stage"), (op.slice, "slice"))
    return Op(op.kind, *(_checked_count(value, f"rank {rank}: {op!r}: {what}", 0) for value, what in counts))


class Schedule:
    """The ordered compute ops of each rank, and the rank of each stage. Complete, without a deadlock, and immutable."""

    __slots__ = ("_schedule",)
    _schedule: _core.Schedule

    def __init__(self, core: _core.Schedule) -> None:
        """Use ``schedule`` or one of the class methods."""
        self._schedule = core

    @classmethod
    def from_function(
        cls,
        ops: Callable[[int], Iterable[Step]],
        *,
        ranks: int,
        microbatches: int,
        placement: Sequence[int] | None = None,
        slices: int = 1,
    ) -> Schedule:
        """Returns the schedule of a function that yields the ops of a rank in their order.

        ``placement`` lists the rank of each stage (default: one stage per rank). A pair of ops is a joint block. Raises
        ScheduleError, as for a schedule file, if an op is missing, occurs twice or is on another rank, or if the ranks
        would deadlock, and InputError for wrong types or more ops than there are.

            def gpipe(rank):
                yield from (sluice.F(mb, rank) for mb in range(8))
                yield from (sluice.B(mb, rank) for mb in range(8))

            schedule = sluice.Schedule.from_function(gpipe, ranks=4, microbatches=8)
        """
        ranks = _checked_count(ranks, "ranks")
        microbatches = _checked_count(microbatches, "microbatches")
        slices = _checked_count(slices, "slices")
        if not callable(ops):
            raise _core.InputError(f"ops: expected a function that takes the number of the rank, got {ops!r}")
        stages = [_checked_count(rank, "placement", 0) for rank in (range(ranks) if placement is None else placement)]
        # A forward and at most two halves of a backward of each microbatch and slice in each stage.
        most = 3 * microbatches * slices * len(stages)
        orders: list[list[tuple[str, int, int, int, bool]]] = []
        for rank in range(ranks):
            order: list[tuple[str, int, int, int, bool]] = []
            for step in ops(rank):
                pair = isinstance(step, Sequence) and not isinstance(step, (Op, str))
                block: tuple[Any, ...] = tuple(step) if pair else (step,)
                if len(block) not in (1, 2) or not all(isinstance(op, Op) for op in block):
                    raise _core.InputError(f"rank {rank}: expected an op or a pair of ops, got {step!r}")
                order += [(*_checked_op(op, rank), i + 1 < len(block)) for i, op in enumerate(block)]
                if len(order) > most:
                    raise _core.InputError(
                        f"rank {rank}: expected at most {most} ops (F, I and W of {microbatches} microbatches in "
                        f"{len(stages)} stages), got more"
                    )
            orders.append(order)
        name = getattr(ops, "__name__", "custom")
        return cls(_core.Schedule.from_ops(name, orders, stages, microbatches, slices))

    @classmethod
    def from_csv(cls, text: str, source: str = "schedule") -> Schedule:
        """Returns the schedule in a CSV text of ``torch.distributed.pipelining``. ``source`` names it in errors."""
        return cls(_core.Schedule.from_csv(text, source))

    @classmethod
    def from_json(cls, text: str, source: str = "schedule") -> Schedule:
        """Returns the schedule in a JSON text ("sluice.schedule/1"). ``source`` names it in errors."""
        return cls(_core.Schedule.from_json(text, source))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schedule:
        """Reads a CSV or JSON file."""
        name = os.fspath(path)
        with open(name, encoding="utf-8") as file:
            text = file.read()
        return cls.from_json(text, name) if name.endswith(".json") else cls.from_csv(text, name)

    def to_csv(self, communication: bool = False) -> str:
        """Returns the CSV of PyTorch; ``communication`` adds sends and receives where PyTorch would insert them.

        Raises InputError for what PyTorch's format cannot express: slices, stages on two ranks, several batches.
        """
        return (self._schedule.with_communication() if communication else self._schedule).csv(communication)

    def to_json(self) -> str:
        """Returns the schedule as the text of a schedule file."""
        return self._schedule.json()

    def check(self, communicators: str = "", wait: str = "stream") -> list[dict[str, Any]]:
        """Returns the checks of ``sluice schedule --check``: name, verdict (ok, note or error) and detail of each.

        ``communicators`` and ``wait`` are the values of its flags; without ``communicators``, all mappings are checked.
        The check of one has the cycle of a hang (rank, item, reason) and the swapped messages. Raises InputError.
        """
        checks: list[dict[str, Any]] = json.loads(self._schedule.checks(communicators, wait))["checks"]
        return checks

    def with_merged_backwards(self) -> Schedule:
        """Returns the schedule with every I that is directly followed by its W as one B, as PyTorch does."""
        return Schedule(self._schedule.with_merged_backwards())

    def ops(self, rank: int) -> list[Op | tuple[Op, Op]]:
        """Returns the ops of a rank in their order; a pair is a joint block."""
        out: list[Op | tuple[Op, Op]] = []
        first: Op | None = None
        for kind, microbatch, stage, slice, joined in self._schedule.ops(rank):
            op = Op(kind, microbatch, stage, slice)
            if first is not None:
                out.append((first, op))
                first = None
            elif joined:
                first = op
            else:
                out.append(op)
        return out

    @property
    def name(self) -> str:
        """The family, or "custom"."""
        return self._schedule.family

    @property
    def num_ranks(self) -> int:
        return self._schedule.num_ranks

    @property
    def num_stages(self) -> int:
        return self._schedule.num_stages

    @property
    def num_microbatches(self) -> int:
        """Per batch."""
        return self._schedule.num_microbatches

    @property
    def num_batches(self) -> int:
        """1, except for schedules without a flush."""
        return self._schedule.num_batches

    @property
    def num_slices(self) -> int:
        """The largest number of slices of a sequence."""
        return self._schedule.num_slices

    @property
    def slice_lengths(self) -> list[int]:
        """The tokens of each slice of the first microbatch."""
        return self._schedule.slice_lengths

    @property
    def num_sequences(self) -> int:
        """The number of sequences in the first microbatch."""
        return self._schedule.num_sequences

    @property
    def split_backward(self) -> bool:
        """Whether input and weight gradients are separate ops, at least in places."""
        return self._schedule.split_backward

    @property
    def placement(self) -> list[list[int]]:
        """The rank of each stage, by route. Replicated stages have two routes."""
        return self._schedule.routes

    def peak_in_flight(self, rank: int) -> float:
        """Returns the maximum of stored activations, in microbatches through 1/ranks of the layers."""
        return self._schedule.peak_in_flight(rank)

    def simulate(self, scenario: Scenario | None = None, /, **keys: Unpack[SizeKeys]) -> Result:
        """Returns the prediction of this schedule in a scenario; without one, with equal times of all ops."""
        from ._result import simulate

        return simulate(scenario, schedule=self, **keys)

    def __repr__(self) -> str:
        sizes = f"{self.num_ranks} ranks, {self.num_stages} stages, {self.num_microbatches} microbatches"
        return f"<sluice.Schedule {self.name}: {sizes}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Schedule.from_json, (self.to_json(),)

    def _repr_html_(self) -> str:
        return self.simulate()._repr_html_()


def schedule(name: str = "1f1b", /, **keys: Unpack[SizeKeys]) -> Schedule:
    """Returns the schedule of a family, or of a file, for the sizes in keywords.

    sluice.schedule("zb-v", pp=4, microbatches=8)
    """
    document = Scenario(schedule=name, **keys)._document
    return Schedule(_core.Schedule.of_scenario(document))
