#!/usr/bin/env python3
"""Runs schedules of sluice in PyTorch's pipelining runtime, on all GPUs or on the CPU, and compares traces with predictions.

    pytorch_pipeline.py --sluice PATH [--device cuda|cpu] [--ranks N] [--schedules NAME,...] [--json FILE]

Each GPU is a rank (NCCL); on the CPU there are N processes (gloo). For each schedule, `sluice schedule` writes the CSV that
_PipelineScheduleRuntime loads; the losses and gradients must equal those of one process without a pipeline; the profiler's
trace of one step must have the schedule's ops in its order; and `sluice analyze` writes the measured times as a scenario,
whose simulation is compared with the step by `sluice compare`. Needs PyTorch, not the Python package of sluice. Exits with 1
if losses, gradients or orders differ.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

CHUNKS = {"1f1b": 1, "interleaved-1f1b": 2, "zb-v": 2}


def block(width, seed, device, dtype):
    """One stage: a layer whose weights depend on the stage only."""
    torch.manual_seed(seed)
    layer = torch.nn.Sequential(
        torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
    )
    return layer.to(device=device, dtype=dtype)


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def run_command(*words):
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: exit code {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def pipeline_of(csv, stages, ranks, microbatches, options, device):
    """Returns PyTorch's runtime with the schedule, and its modules by stage."""
    rank = dist.get_rank()
    with open(csv, encoding="utf-8") as file:
        own = sorted({int(stage) for stage in re.findall(r"(\d+)F\d", file.read().splitlines()[rank])})
    modules = {stage: block(options.width, stage, device, torch.float32) for stage in own}
    parts = [PipelineStage(modules[stage], stage, stages, device) for stage in own]
    runtime = _PipelineScheduleRuntime(parts, microbatches, loss_fn=loss_of)
    runtime._load_csv(csv)
    return runtime, modules


def step(runtime, inputs, target):
    losses = []
    arguments = [inputs] if any(stage.is_first for stage in runtime._stages) else []
    if any(stage.is_last for stage in runtime._stages):
        runtime.step(*arguments, target=target, losses=losses)
    else:
        runtime.step(*arguments)
    return losses


def relative_difference(a, b):
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()


def compare_with_one_process(runtime, modules, stages, microbatches, inputs, target, options, device):
    """Returns the largest relative difference of losses and of gradients on this rank."""
    losses = step(runtime, inputs, target)
    whole = [block(options.width, stage, device, torch.float32) for stage in range(stages)]
    expected = []
    for part, wanted in zip(inputs.chunk(microbatches), target.chunk(microbatches)):
        for module in whole:
            part = module(part)
        expected.append(loss_of(part, wanted))
        (expected[-1] / microbatches).backward()
    worst = max((relative_difference(a, b) for a, b in zip(losses, expected)), default=0.0)
    for stage, module in modules.items():
        for mine, theirs in zip(module.parameters(), whole[stage].parameters()):
            worst = max(worst, relative_difference(mine.grad, theirs.grad))
        module.zero_grad(set_to_none=True)
    return worst


def work(rank, ranks, options, folder):
    device = torch.device("cuda", rank) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    results = []
    for name in options.schedules.split(","):
        stages, microbatches = ranks * CHUNKS[name], 2 * ranks * CHUNKS[name]
        csv = os.path.join(folder, name + ".csv")
        runtime, modules = pipeline_of(csv, stages, ranks, microbatches, options, device)
        torch.manual_seed(7)
        rows = microbatches * options.rows
        inputs = torch.randn(rows, options.width).to(device)
        target = torch.randn(rows, options.width).to(device)
        worst = compare_with_one_process(runtime, modules, stages, microbatches, inputs, target, options, device)
        for _ in range(2):
            step(runtime, inputs, target)
        with torch.profiler.profile(activities=activities) as profiler:
            step(runtime, inputs, target)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        traces = os.path.join(folder, "traces-" + name)
        os.makedirs(traces, exist_ok=True)
        profiler.export_chrome_trace(os.path.join(traces, f"rank{rank}.json"))
        gathered = [None] * ranks
        dist.all_gather_object(gathered, worst)
        results.append({"schedule": name, "stages": stages, "microbatches": microbatches, "difference": max(gathered)})
    if rank == 0:
        with open(os.path.join(folder, "results.json"), "w", encoding="utf-8") as file:
            json.dump(results, file)
    dist.barrier()
    dist.destroy_process_group()


def judged(result, options, folder):
    """Adds what sluice reads in the trace: the recognised schedule, and the prediction from the measured times."""
    name = result["schedule"]
    traces = os.path.join(folder, "traces-" + name)
    scenario = os.path.join(folder, name + "-measured.json")
    analysis = json.loads(run_command(options.sluice, "analyze", traces, "--scenario", scenario, "--json"))
    # With one rank, several families have the same order; the order itself is compared by what follows.
    result["recognised"] = analysis["schedule"]["family"]
    result["measured_s"] = analysis["mean_step"]["measured_s"]
    with open(scenario, encoding="utf-8") as file:
        document = json.load(file)
    document["schedule"] = {"name": os.path.join(folder, name + ".csv")}
    for key in ("pp", "vpp"):
        document["parallelism"].pop(key, None)
    document.pop("batch", None)
    with open(scenario, "w", encoding="utf-8") as file:
        json.dump(document, file)
    compared = json.loads(run_command(options.sluice, "compare", scenario, traces, "--json"))
    result["ops"] = compared["pairs"]
    result["unpaired"] = sum(compared["unpaired"][side]["count"] for side in ("first", "second"))
    result["predicted_s"] = compared["makespan_s"]["first"]
    result["order_equal"] = orders(traces, name, folder)
    result["passed"] = result["difference"] <= options.tolerance and result["order_equal"]
    return result


def orders(traces, name, folder):
    """Whether the forwards and backwards in each rank's trace are those of the CSV, in its order."""
    with open(os.path.join(folder, name + ".csv"), encoding="utf-8") as file:
        wanted = [line.split(",") for line in file.read().splitlines()]
    for rank, cells in enumerate(wanted):
        with open(os.path.join(traces, f"rank{rank}.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        ranges = [
            (event["ts"], match.group(1))
            for event in events
            if event.get("ph") == "X" and event.get("cat") == "user_annotation"
            for match in [re.fullmatch(r"PP:(\d+[FBIW]\d+)", event["name"])]
            if match
        ]
        if [op for _, op in sorted(ranges)] != [cell for cell in cells if cell]:
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sluice", default="sluice", help="the command (default: sluice)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ranks", type=int, help="pipeline ranks (default: the GPUs, at most 4; 2 on the CPU)")
    parser.add_argument("--schedules", default=",".join(CHUNKS), help="of " + ", ".join(CHUNKS))
    parser.add_argument("--width", type=int, default=1024, help="of the layers (default 1024)")
    parser.add_argument("--rows", type=int, default=1024, help="tokens of a microbatch (default 1024)")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative difference of losses and gradients")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    for name in options.schedules.split(","):
        if name not in CHUNKS:
            parser.error(f"--schedules: expected {', '.join(CHUNKS)}, got '{name}'")
    available = torch.cuda.device_count() if options.device == "cuda" else 2
    if available == 0:
        parser.error("--device cuda: PyTorch sees no GPU")
    ranks = options.ranks or min(4, available)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.schedules.split(","):
            chunks = [] if CHUNKS[name] == 1 else ["--vpp", str(CHUNKS[name])]
            run_command(options.sluice, "schedule", name, "--pp", str(ranks), *chunks, "--microbatches",
                        str(2 * ranks * CHUNKS[name]), "-o", os.path.join(folder, name + ".csv"))
        try:
            # Forked processes import PyTorch once, but cannot use CUDA.
            method = "fork" if options.device == "cpu" else "spawn"
            mp.start_processes(work, args=(ranks, options, folder), nprocs=ranks, start_method=method)
        except mp.ProcessRaisedException:
            traceback.print_exc()
            return 1
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            results = [judged(result, options, folder) for result in json.load(file)]
    print(f"{'schedule':<18} {'ranks':>5} {'difference':>11} {'order':>9} {'measured':>11} {'predicted':>11}")
    for result in results:
        print(f"{result['schedule']:<18} {ranks:>5} {result['difference']:>11.1e} "
              f"{'equal' if result['order_equal'] else 'DIFFERENT':>9} {1e3 * result['measured_s']:>8.2f} ms "
              f"{1e3 * result['predicted_s']:>8.2f} ms")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": options.device, "ranks": ranks, "results": results}, file, indent=2)
    return 0 if all(result["passed"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
