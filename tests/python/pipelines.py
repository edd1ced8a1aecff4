"""Trains a small transformer with every schedule family in PyTorch's pipelining, over gloo on the CPU.

Run by test_torch.py: python tests/python/pipelines.py RANKS FOLDER TASK[=FAMILY,...]... starts the processes. Each task
and family is run in the process group of all. FOLDER gets TASK-RANKS.json, its results by family. One start has several
tasks, because PyTorch takes seconds to import.
"""

import ast
import datetime
import importlib.util
import json
import logging
import os
import pathlib
import sys
import types

import torch
import torch.distributed as dist
import torch.distributed.pipelining.schedules
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage

import sluice
import sluice.torch

LAYERS = 16
VOCABULARY = 64


class Block(nn.Module):
    """A transformer layer with causal attention."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = 4
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attention = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Stage(nn.Module):
    """Contiguous layers; the first stage embeds tokens, the last one has the head."""

    def __init__(self, layers, embedding=None, head=None):
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.head = head

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


def stages_of_model(num_stages, width=32, layers=LAYERS, dtype=torch.float64, tied=False):
    """Returns the stages of the same model for any number of stages; ``tied``: embedding and head share a weight."""
    torch.manual_seed(1)
    blocks = [Block(width) for _ in range(layers)]
    embedding = nn.Embedding(VOCABULARY, width)
    head = nn.Linear(width, VOCABULARY)
    if tied:
        head.weight = embedding.weight
    cuts = [layers * stage // num_stages for stage in range(num_stages + 1)]
    stages = []
    for stage in range(num_stages):
        own = blocks[cuts[stage] : cuts[stage + 1]]
        stages.append(
            Stage(own, embedding if stage == 0 else None, head if stage == num_stages - 1 else None).to(dtype)
        )
    return stages


def loss_fn(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def data(microbatches, sequences=1, tokens=16):
    torch.manual_seed(2)
    shape = (microbatches * sequences, tokens)
    return torch.randint(VOCABULARY, shape), torch.randint(VOCABULARY, shape)


def gradients_of(stages):
    """Returns the gradients by layer of the whole model, whatever the number of stages."""
    out = {}
    layer = 0
    for stage in stages:
        for block in stage.layers:
            out.update({f"layers.{layer}.{name}": p.grad for name, p in block.named_parameters()})
            layer += 1
        for part in ("embedding", "head"):
            module = getattr(stage, part)
            if module is not None:
                out.update({f"{part}.{name}": p.grad for name, p in module.named_parameters()})
    return out


def one_process(microbatches, tied=False):
    """Returns losses and gradients of one step without a pipeline."""
    (model,) = stages_of_model(1, tied=tied)
    inputs, targets = data(microbatches)
    losses = []
    for x, y in zip(inputs.chunk(microbatches), targets.chunk(microbatches)):
        loss = loss_fn(model(x), y)
        (loss / microbatches).backward()
        losses.append(loss.item())
    return losses, gradients_of([model])


def schedule_of(family, ranks):
    row = next(row for row in sluice.families() if row["name"] == family)
    microbatches = ranks if family == "hanayo" else 2 * ranks
    keys = {"slices": 2} if row["sliced"] else {}
    return sluice.schedule(family, pp=ranks, microbatches=microbatches, **keys)


def schedule_builder_of_torchtitan():
    """Returns the function of torchtitan that builds a schedule, without importing its other dependencies."""
    folder = importlib.util.find_spec("torchtitan").submodule_search_locations[0]
    path = pathlib.Path(folder, "distributed", "pipeline_parallel.py")
    (function,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "_build_pipeline_schedule"
    )
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    names = {**vars(torch.distributed.pipelining.schedules), "os": os, "logger": logging.getLogger("torchtitan")}
    exec(compile(ast.fix_missing_locations(ast.Module([future, function], [])), str(path), "exec"), names)
    return names["_build_pipeline_schedule"]


def run_in_torchtitan(family, ranks, folder):
    """Returns the errors of losses and gradients with a schedule that torchtitan loads from our CSV."""
    schedule = schedule_of(family, ranks)
    path = pathlib.Path(folder, f"{family}-{ranks}-{dist.get_rank()}.csv")
    path.write_text(schedule.to_csv())
    modules = stages_of_model(schedule.num_stages)
    own = sluice.torch.stages_of(schedule)
    pipeline = schedule_builder_of_torchtitan()(
        parallelism=types.SimpleNamespace(
            pipeline_parallel_schedule_csv=str(path),
            pipeline_parallel_schedule="",
            pipeline_parallel_microbatch_size=1,
            pipeline_parallel_degree=ranks,
        ),
        local_batch_size=schedule.num_microbatches,
        stages=[PipelineStage(modules[s], s, schedule.num_stages, torch.device("cpu")) for s in own],
        loss_fn=lambda output, target: (loss_fn(output, target), None),
    )
    inputs, targets = data(schedule.num_microbatches)
    losses = [loss.item() for loss in sluice.torch.step(pipeline, inputs, target=targets)]
    expected_losses, expected = one_process(schedule.num_microbatches)
    stage = modules[own[-1]]
    layer = LAYERS * own[-1] // schedule.num_stages
    parameter = stage.layers[0].up.weight
    wanted = expected[f"layers.{layer}.up.weight"] * schedule.num_microbatches  # torchtitan does not scale them
    error = ((parameter.grad - wanted).abs().max() / wanted.abs().max()).item()
    gathered = [None] * ranks
    dist.all_gather_object(gathered, (losses, error))
    found = next(part for part, _ in gathered if part)
    return {
        "losses": max(abs(a / b - 1) for a, b in zip(found, expected_losses, strict=True)),
        "gradients": max(error for _, error in gathered),
    }


def run_family(family, ranks, folder):
    """Returns what the tests check: loss, gradients and order of the family."""
    schedule = schedule_of(family, ranks)
    reason = sluice.torch.refusal(schedule)
    if reason:
        return {"runs": False, "reason": reason}
    rank = dist.get_rank()
    stages = stages_of_model(schedule.num_stages)
    own = {stage: stages[stage] for stage in sluice.torch.stages_of(schedule)}
    pipeline = sluice.torch.runtime(schedule, own, loss_fn)
    inputs, targets = data(schedule.num_microbatches)
    sluice.torch.step(pipeline, inputs, target=targets)  # the first step exchanges shapes
    for module in own.values():
        module.zero_grad(set_to_none=True)
    traces = os.path.join(folder, f"{family}-{ranks}")
    with sluice.torch.trace(traces):
        losses = sluice.torch.step(pipeline, inputs, target=targets)
    gathered = [None] * ranks
    dist.all_gather_object(gathered, ([loss.item() for loss in losses], {s: m.state_dict() for s, m in own.items()}))
    gradients = [None] * ranks
    dist.all_gather_object(gradients, {s: {n: p.grad for n, p in m.named_parameters()} for s, m in own.items()})
    if rank != 0:
        return None
    for part in gradients:
        for stage, grads in part.items():
            for name, parameter in stages[stage].named_parameters():
                parameter.grad = grads[name]
    expected_losses, expected = one_process(schedule.num_microbatches)
    measured_losses = next(part for part, _ in gathered if part)
    found = gradients_of(stages)
    loss_error = max(abs(a / b - 1) for a, b in zip(measured_losses, expected_losses))
    gradient_error = max(((found[n] - g).abs().max() / g.abs().max()).item() for n, g in expected.items())
    measured = [[row.op for row in sluice.read_ops(traces) if row.rank == r] for r in range(ranks)]
    listed = [[op for each in schedule.ops(r) for op in ([each] if isinstance(each, sluice.Op) else each)]
              for r in range(ranks)]
    comparison = sluice.compare(schedule.simulate(), traces)
    return {
        "runs": True,
        "losses": len(measured_losses) == len(expected_losses) and loss_error,
        "gradients": len(found) == len(expected) and gradient_error,
        "order": measured == listed,
        "compared": comparison["schema"],
        "traces": traces,
    }


def profile_family(family, ranks, folder):
    """Returns the predicted makespan of steps of a wider model, and the measured ones with their waits for a core."""
    schedule = sluice.schedule(family, pp=ranks, microbatches=4 * ranks)
    stages = stages_of_model(schedule.num_stages, width=192, layers=8, dtype=torch.float32)
    own = {stage: stages[stage] for stage in sluice.torch.stages_of(schedule)}
    inputs, targets = data(schedule.num_microbatches, sequences=2, tokens=128)
    measured = sluice.torch.profile(schedule, own, loss_fn, inputs, targets)
    pipeline = sluice.torch.runtime(schedule, own, loss_fn)
    sluice.torch.step(pipeline, inputs, target=targets)
    steps = []
    for repetition in range(7):
        traces = os.path.join(folder, f"profiled-{family}-{ranks}-{repetition}")
        with sluice.torch.trace(traces):
            dist.barrier()
            waited = sluice.torch.core_wait_s()
            sluice.torch.step(pipeline, inputs, target=targets)
            waited = sluice.torch.core_wait_s() - waited
        waits = [None] * ranks
        dist.all_gather_object(waits, waited)
        if dist.get_rank() == 0:
            ops = sluice.read_ops(traces)
            span = (max(row.end for row in ops) - min(row.start for row in ops)) / 1e9
            steps.append({"seconds": span, "core_wait": max(waits) / span})
    predicted = sluice.simulate(schedule=schedule, uniform=measured.cost).makespan_s
    return {"predicted_s": predicted, "steps": steps, "core_wait": measured.core_wait, "cost": measured.cost}


def share_family(family, ranks, folder):
    """Returns the error of the gradient of a weight that two stages of rank 0 share, and of a batch that does not fit."""
    schedule = schedule_of(family, ranks)
    stages = stages_of_model(schedule.num_stages, tied=True)
    own = {stage: stages[stage] for stage in sluice.torch.stages_of(schedule)}
    pipeline = sluice.torch.runtime(schedule, own, loss_fn)
    inputs, targets = data(schedule.num_microbatches)
    try:
        sluice.torch.step(pipeline, inputs[1:], target=targets[1:])
        refused = ""
    except sluice.InputError as error:
        refused = str(error)
    errors = []
    for _ in range(2):
        for module in own.values():
            module.zero_grad(set_to_none=True)
        sluice.torch.step(pipeline, inputs, target=targets)
        _, expected = one_process(schedule.num_microbatches, tied=True)
        wanted = expected["embedding.weight"]
        if dist.get_rank() == 0:
            errors.append(((stages[0].embedding.weight.grad - wanted).abs().max() / wanted.abs().max()).item())
    return {"shared": 0 in own and schedule.num_stages - 1 in own, "errors": errors, "refused": refused}


def trace_replicas(family, ranks, folder):
    """Returns the files that two replicas write which record into the same folder."""
    groups = [dist.new_group(list(range(first, first + ranks // 2))) for first in (0, ranks // 2)]
    group = groups[dist.get_rank() // (ranks // 2)]
    traces = pathlib.Path(folder, "replicas")
    with sluice.torch.trace(traces, group):
        torch.ones(2).sum()
    dist.barrier()
    return sorted(str(path.relative_to(traces)) for path in traces.rglob("*.json"))


def worker(rank, ranks, folder, tasks):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(ranks))
    store = dist.FileStore(os.path.join(folder, f"store-{ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    runs = {"run": run_family, "profile": profile_family, "torchtitan": run_in_torchtitan,
            "share": share_family, "replicas": trace_replicas}
    for task, families in tasks.items():
        results = {}
        for family in families:
            results[family] = runs[task](family, ranks, folder)
            if rank == 0:
                print(f"{task}, {family}: {results[family]}", file=sys.stderr, flush=True)
        if rank == 0:
            with open(os.path.join(folder, f"{task}-{ranks}.json"), "w") as file:
                json.dump(results, file)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, folder, *words = sys.argv[1:]
    for old in pathlib.Path(folder).glob(f"store-{ranks}*"):
        old.unlink()
    every = [row["name"] for row in sluice.families()]
    tasks = {task: families.split(",") if families else every for task, _, families in (w.partition("=") for w in words)}
    # Forked, so that PyTorch is imported once; this process has no threads yet.
    mp.start_processes(worker, (int(ranks), folder, tasks), nprocs=int(ranks), start_method="fork")
