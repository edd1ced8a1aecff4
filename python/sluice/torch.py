"""Schedules in PyTorch.

``runtime`` loads a schedule into the runtime of torch.distributed.pipelining, ``profile`` measures its stages for
predictions, and ``trace`` records what ran; ``model`` makes a model of any module, for predictions without a GPU. Every
rank of a process group calls the first three:

    schedule = sluice.schedule("zb-h1", pp=4, microbatches=8)
    modules = {stage: build(stage) for stage in sluice.torch.stages_of(schedule)}
    pipeline = sluice.torch.runtime(schedule, modules, loss_fn)
    with sluice.torch.trace("traces"):
        losses = sluice.torch.step(pipeline, inputs, target=targets)

    measured = sluice.torch.profile(schedule, modules, loss_fn, inputs, targets)
    predicted = sluice.simulate(schedule=schedule, uniform=measured.cost)
    sluice.compare(predicted, "traces")

torchtitan and others read the text of ``Schedule.to_csv`` (``pipeline_parallel_schedule_csv``).
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as _pipelining
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from . import _core
from ._scenario import Scenario
from ._schedule import Schedule

if TYPE_CHECKING:
    from ._trace import Kernel
    from ._traced import Model, model

__all__ = [
    "Kernel",
    "Model",
    "Profile",
    "check",
    "core_wait_s",
    "model",
    "profile",
    "refusal",
    "runtime",
    "stages_of",
    "step",
    "trace",
]

Loss = Callable[[Any, Any], Any]


def __getattr__(name: str) -> Any:
    """Imports what traces modules when it is used: it takes longer than the rest."""
    if name in ("Kernel", "Model", "model"):
        from . import _traced

        return getattr(_traced, name)
    raise AttributeError(f"module 'sluice.torch' has no attribute '{name}'")


def refusal(schedule: Schedule) -> str:
    """Returns the reason why PyTorch's runtime cannot run a schedule; "" if it can."""
    try:
        schedule.to_csv()
    except _core.InputError as error:
        return str(error)
    return ""


def _communicating(schedule: Schedule, defer_pp_recv: bool) -> Schedule:
    """Returns a schedule with the sends and receives that the installed version adds to its ops."""
    rows = [row.split(",") for row in schedule.to_csv().splitlines()]
    actions = {rank: [_pipelining._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    placement = schedule.placement[0]
    actions = _pipelining._add_send_recv(actions, placement.__getitem__, schedule.num_stages)
    if defer_pp_recv:
        defer = getattr(_pipelining, "_defer_recv_ops", None)
        if defer is None:
            raise _core.InputError(f"sluice.torch: PyTorch {torch.__version__} has no defer_pp_recv")
        actions = defer(actions, placement.__getitem__)
    text = "".join(",".join(map(str, actions[rank])) + "\n" for rank in range(schedule.num_ranks))
    return Schedule.from_csv(text)


def check(schedule: Schedule, *, eager: bool = False, defer_pp_recv: bool = False) -> dict[str, Any]:
    """Decides whether PyTorch's pipelining of the installed version hangs on a schedule over NCCL, or swaps messages.

    A schedule of ops gets the sends and receives of the installed version, with ``defer_pp_recv`` those of the option of
    that name; a schedule with sends and receives keeps them. Two ranks share a communicator, and with ``eager``
    (``init_process_group`` with a ``device_id``) all ranks of the group; messages wait for all compute that was issued
    before them. Returns the check of ``Schedule.check``, and the version as ``torch``. Nothing is run, and no process
    group is needed. Raises InputError for a schedule that the runtime cannot express.
    """
    reason = refusal(schedule)
    if reason:
        raise _core.InputError(reason)
    if not schedule._schedule.has_communication:
        schedule = _communicating(schedule, defer_pp_recv)
    elif defer_pp_recv:
        raise _core.InputError("sluice.torch: defer_pp_recv: the schedule has sends and receives of its own")
    (verdict,) = (each for each in schedule.check("one" if eager else "pair", "stream") if "cycle" in each)
    return {**verdict, "torch": str(torch.__version__)}


def stages_of(schedule: Schedule, group: Any = None) -> list[int]:
    """Returns the stages of this process in model order."""
    rank = dist.get_rank(group)
    return [stage for stage, of in enumerate(schedule.placement[0]) if of == rank]


def _scale_shared_once(stages: Sequence[Any]) -> None:
    """Makes stages divide the gradient of a shared parameter once: PyTorch's divide it once per stage that has it."""
    holders = Counter(id(parameter) for stage in stages for parameter in stage.submod.parameters())
    calls: Counter[int] = Counter()

    def scale(stage: Any, factor: int) -> None:
        for parameter in stage.submod.parameters():
            calls[id(parameter)] += 1
            if calls[id(parameter)] % holders[id(parameter)] == 0 and factor != 1 and parameter.grad is not None:
                parameter.grad.div_(factor)

    if any(count > 1 for count in holders.values()):
        for stage in stages:
            stage.scale_grads = functools.partial(scale, stage)


def runtime(
    schedule: Schedule,
    modules: Mapping[int, Any],
    loss_fn: Union[Loss, None] = None,
    *,
    device: Any = "cpu",
    group: Any = None,
    scale_grads: bool = True,
) -> Any:
    """Returns PyTorch's runtime (``_PipelineScheduleRuntime``) with a schedule.

    ``modules`` are the stages of this process, by stage. The group has as many processes as the schedule has ranks.
    With ``scale_grads``, gradients are divided by the number of microbatches, for a loss that is a mean; those of a
    parameter that several stages of this process share, once, after the last of them. Raises
    InputError for a schedule that the runtime cannot express, and for missing stages.
    """
    reason = refusal(schedule)
    if reason:
        raise _core.InputError(reason)
    processes = dist.get_world_size(group)
    if processes != schedule.num_ranks:
        raise _core.InputError(
            f"sluice.torch: the schedule has {schedule.num_ranks} ranks, the group {processes} processes"
        )
    own = stages_of(schedule, group)
    if sorted(modules) != own:
        raise _core.InputError(f"sluice.torch: expected the modules of stages {own}, got {sorted(modules)}")
    stages = [
        PipelineStage(modules[stage], stage, schedule.num_stages, torch.device(device), group=group) for stage in own
    ]
    _scale_shared_once(stages)
    out = _PipelineScheduleRuntime(stages, schedule.num_microbatches, loss_fn=loss_fn, scale_grads=scale_grads)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "schedule.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(schedule.to_csv())
        out._load_csv(path)
    return out


def step(pipeline: Any, *inputs: Any, target: Any = None) -> list[Any]:
    """Runs one training step, without the optimizer. Returns the losses of the microbatches, on the last stage's rank.

    Every process may pass ``inputs`` and ``target``; those that the runtime expects on other ranks are ignored. Raises
    InputError for a batch that the microbatches do not divide.
    """
    for batch in (*inputs, target):
        if torch.is_tensor(batch) and batch.dim() > 0 and batch.shape[0] % pipeline._n_microbatches != 0:
            raise _core.InputError(
                f"sluice.torch.step: {pipeline._n_microbatches} microbatches do not divide a batch of {batch.shape[0]}"
            )
    first = any(stage.is_first for stage in pipeline._stages)
    last = any(stage.is_last for stage in pipeline._stages)
    losses: list[Any] = []
    arguments = inputs if first else ()
    if last:
        pipeline.step(*arguments, target=target, losses=losses)
    else:
        pipeline.step(*arguments)
    return losses


@contextlib.contextmanager
def trace(folder: str | os.PathLike[str], group: Any = None) -> Iterator[str]:
    """Records the block with PyTorch's profiler into ``folder``, as one file per rank. Gives the folder of this process.

    ``sluice.read_ops``, ``sluice.compare`` and ``sluice.analyze`` read the folder after all ranks have left the block.
    A group without rank 0 of all processes, such as another replica, writes into ``folder/replicaN``, with N its lowest
    rank, so that replicas do not replace each other's files.
    """
    lowest = 0 if group is None else min(dist.get_process_group_ranks(group))
    own = os.path.join(folder, f"replica{lowest}") if lowest > 0 else os.fspath(folder)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        yield own
    os.makedirs(own, exist_ok=True)
    profiler.export_chrome_trace(os.path.join(own, f"rank{dist.get_rank(group)}.json"))
    dist.barrier(group)


@dataclass
class Profile:
    """Measured times of the stages of a schedule, in seconds: medians over microbatches and repetitions.

    ``cost`` is the argument ``uniform`` of Scenario and simulate: the forward, input gradient and weight gradient of
    each stage, and the time of one transfer. ``spread`` has the relative interquartile range of each of them.
    """

    cost: dict[str, Any]
    spread: list[dict[str, float]]
    microbatches: int
    ranks: int
    repetitions: int
    core_wait: float = 0.0  #: of the profile's time, in the process that waited longest for a core
    device: str = "cpu"
    torch: str = field(default_factory=lambda: str(torch.__version__))

    def scenario(self) -> Scenario:
        """Returns the scenario with these costs."""
        document = {
            "schema": "sluice.scenario/1",
            "parallelism": {"pp": self.ranks},
            "batch": {"microbatches": self.microbatches},
            "cost": {"kind": "uniform", **self.cost},
        }
        return Scenario(document)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the scenario as a file that all commands read."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.scenario().to_json())


def profile(
    schedule: Schedule,
    modules: Mapping[int, Any],
    loss_fn: Loss,
    inputs: Union[Any, Sequence[Any]],
    target: Any,
    *,
    repetitions: int = 5,
    warm_up: int = 2,
    device: Any = "cpu",
    group: Any = None,
) -> Profile:
    """Measures the ops of all stages, and one transfer, on this machine.

    The schedule runs with its own inputs, so that processes that share memory or cores slow each other down as in a
    step; waits for other ranks are left out. Gradients accumulate in the modules as in a step; they are set to None at
    the end. The result is the same on all ranks.
    """
    batch = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    pipeline = runtime(schedule, modules, loss_fn, device=device, group=group)
    seconds: dict[tuple[int, str], list[float]] = {}
    outputs = _time_ops(pipeline, seconds, torch.device(device))
    begin, waited = time.perf_counter(), core_wait_s()
    for repetition in range(warm_up + repetitions):
        if repetition == warm_up:
            seconds.clear()
        step(pipeline, *batch, target=target)
    wait = (core_wait_s() - waited) / (time.perf_counter() - begin)
    for module in modules.values():
        module.zero_grad(set_to_none=True)
    transfer = _transfer_s(outputs.get(0), schedule, torch.device(device), group)
    gathered: list[Any] = [None] * schedule.num_ranks
    dist.all_gather_object(gathered, (seconds, transfer, wait), group=group)
    times = {key: values for part, _, _ in gathered for key, values in part.items()}
    stages: list[dict[str, float]] = []
    spread: list[dict[str, float]] = []
    for stage in range(schedule.num_stages):
        kinds = {kind: times[stage, kind] for kind in "FBIW" if (stage, kind) in times}
        medians = {kind: statistics.median(values) for kind, values in kinds.items()}
        whole = medians.get("B", 0.0)  # simulated as the sum of both halves
        stages.append(
            {"f": medians["F"], "b": medians.get("I", whole / 2), "w": medians.get("W", whole / 2)},
        )
        spread.append({kind: _relative_spread(values) for kind, values in kinds.items()})
    cost = {"stages": stages, "comm": max(each for _, each, _ in gathered)}
    return Profile(
        cost,
        spread,
        schedule.num_microbatches,
        schedule.num_ranks,
        repetitions,
        max(each for _, _, each in gathered),
        str(torch.device(device)),
    )


def core_wait_s() -> float:
    """Returns the seconds that the threads of this process have waited for a core; 0 where Linux does not tell.

    A measurement during which it grew is of a machine with other work.
    """
    total = 0
    for thread in glob.glob("/proc/self/task/*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(thread, encoding="ascii") as file:
                total += int(file.read().split()[1])
    return total / 1e9


def _time_ops(pipeline: Any, seconds: dict[tuple[int, str], list[float]], device: Any) -> dict[int, Any]:
    """Makes the stages of a pipeline append the time of every op, without waits for other ranks, to ``seconds``.

    Returns a dictionary that will have the last output of each stage.
    """
    outputs: dict[int, Any] = {}

    def timed(call: Any, kind_of: Callable[..., tuple[int, str]], add: bool = False) -> Any:
        def wrapped(*args: Any, **keys: Any) -> Any:
            begin = time.perf_counter()
            out = call(*args, **keys)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            elapsed = time.perf_counter() - begin
            if not add and kind_of(*args, **keys)[1] == "F":
                outputs[kind_of(*args, **keys)[0]] = out
            values = seconds.setdefault(kind_of(*args, **keys), [])
            if add:
                values[-1] += elapsed
            else:
                values.append(elapsed)
            return out

        return wrapped

    for stage in pipeline._stages:
        index = stage.stage_index
        stage.forward_one_chunk = timed(stage.forward_one_chunk, lambda *_, i=index, **__: (i, "F"))
        stage.backward_one_chunk = timed(
            stage.backward_one_chunk,
            lambda *_, i=index, full_backward=True, **__: (i, "B" if full_backward else "I"),
        )
        stage.backward_weight_one_chunk = timed(
            stage.backward_weight_one_chunk, lambda *_, i=index, **__: (i, "W")
        )
    pipeline._maybe_compute_loss = timed(
        pipeline._maybe_compute_loss, lambda stage, *_, **__: (stage.stage_index, "F"), add=True
    )
    return outputs


def _transfer_s(output: Any, schedule: Schedule, device: Any, group: Any) -> float:
    """Returns the median time of a message with the activations of the first stage, between the first two ranks."""
    sizes: list[Any] = [None]
    if dist.get_rank(group) == schedule.placement[0][0]:
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        sizes = [[(tuple(each.shape), each.dtype) for each in outputs]]
    source = dist.get_global_rank(group, schedule.placement[0][0]) if group is not None else schedule.placement[0][0]
    dist.broadcast_object_list(sizes, src=source, group=group)
    rank = dist.get_rank(group)
    if schedule.num_ranks == 1 or rank > 1:
        dist.barrier(group)
        return 0.0
    peer = 1 - rank
    other = dist.get_global_rank(group, peer) if group is not None else peer
    tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in sizes[0]]

    def message(send: bool) -> None:
        call = dist.isend if send else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(call, each, other, group) for each in tensors]):
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    seconds = []
    for _ in range(3 + 15):
        begin = time.perf_counter()
        message(rank == 0)
        message(rank == 1)
        seconds.append((time.perf_counter() - begin) / 2)
    dist.barrier(group)
    return statistics.median(seconds[3:])


def _relative_spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle

