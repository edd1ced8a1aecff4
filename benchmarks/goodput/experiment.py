#!/usr/bin/env python3
"""Compares the goodput that `sluice goodput` simulates with that of a real run in small: seconds instead of hours.

`sluice run` trains on this machine with checkpoints. A supervisor kills it by a schedule (`--fault kill`, or a signal
while it starts), waits as for detection and replacement, takes a spare or waits for a repair, and resumes from the last
checkpoint; with --policy shrink it continues with fewer replicas until a node is repaired. Delays in all ops
make the iteration time nearly independent of other load. Iteration, start and stall are measured; the rest is set.
"""
import argparse
import json
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

PP, DP, MICROBATCHES, OP_S = 2, 2, 4, 0.02
MODEL = ("--num-layers 2 --hidden-size 32 --num-attention-heads 2 --vocab-size 64 --max-position-embeddings 16 "
         "--seq-length 16 --schedule 1f1b").split()


class Job:
    """A process that trains; `steps` is the last step that it has printed."""

    def __init__(self, args, checkpoint, dp, every, steps=10**6, fault=None):
        command = [*args.launcher.replace("RANKS", str(PP * dp)).split(), args.sluice, "run", *MODEL, "--pp", str(PP),
                   "--dp", str(dp), "--microbatches", str(MICROBATCHES * DP // dp), "--steps", str(steps)]
        for op in "FB":
            command += ["--fault", f"delay:op={op},seconds={OP_S}"]
        if every:
            command += ["--checkpoint", checkpoint, "--checkpoint-every", str(every)]
        self.first = saved_step(checkpoint)
        if self.first:
            command += ["--resume", checkpoint]
        if fault:
            command += ["--fault", fault]
        self.steps = self.first
        self.times = []
        self.begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        start_new_session=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("step "):
                self.times.append(time.monotonic())
                self.steps = int(line.split()[1])

    def wait(self, until):
        """Waits for the end; returns whether it came before the time `until`."""
        try:
            self.process.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        self.reader.join()
        return True

    def end(self, how):
        os.killpg(self.process.pid, how)
        self.process.wait()
        self.reader.join()


def saved_step(checkpoint):
    if not os.path.exists(checkpoint):
        return 0
    with open(checkpoint, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return int(json.loads(file.read(size))["__metadata__"]["step"])


class Times:
    """Mean times of an iteration, of a checkpoint's stall and of a start, in seconds, from jobs with all replicas."""

    def __init__(self, every):
        self.every, self.plain, self.saving, self.starts = every, [], [], []

    def add(self, job):
        for i in range(1, len(job.times)):
            saves = (job.first + i) % self.every == 0  # after the step before
            (self.saving if saves else self.plain).append(job.times[i] - job.times[i - 1])
        if job.first and job.times:
            self.starts.append(job.times[0] - job.begin)

    def step(self):
        return statistics.mean(self.plain)

    def stall(self):
        return max(0.0, statistics.mean(self.saving) - self.step())

    def start(self):
        return max(0.0, statistics.mean(self.starts) - self.step())


class Failures:
    """Running times between failures, uniform from half to one and a half of the mean.

    Blocks of 8 are stratified: their sum is near its mean, so that one run is near the mean of many.
    """

    def __init__(self, mtbf, seed):
        self.mtbf, self.random, self.block = mtbf, random.Random(seed), []

    def next(self):
        if not self.block:
            self.block = [self.mtbf * (0.5 + (i + self.random.random()) / 8) for i in range(8)]
            self.random.shuffle(self.block)
        return self.block.pop()


def experiment(args, times, folder):
    """Trains for args.seconds; returns the steps that are not lost and the number of failures."""
    file = os.path.join(folder, "run.safetensors")
    for _ in range(2):  # the times of a first start and of a resumed one
        job = Job(args, file, DP, args.every, 2 * args.every + 1)
        job.wait(job.begin + 600)
        times.add(job)
    os.remove(file)
    failures = Failures(args.mtbf, args.seed)
    begin = time.monotonic()
    end = begin + args.seconds
    free, repaired, missing, count = args.spares, [], [], 0
    exposure = failures.next()
    steps = 0
    while time.monotonic() < end:
        dp = DP - len(missing)
        factor = dp / DP  # of the rate of failures
        step = times.step() * (MICROBATCHES * DP // dp + PP - 1) / (MICROBATCHES + PP - 1)
        cycle = step + times.stall() / args.every
        running = exposure / factor - times.start()
        fault = None
        if running > 0:
            index, part = divmod(running / cycle, 1)
            fault = (f"kill:rank={failures.random.randrange(PP * dp)},op=F,mb={int(part * MICROBATCHES)},"
                     f"step={saved_step(file) + 1 + int(index)}")
        job = Job(args, file, dp, args.every, fault=fault)
        until = min([end, *missing, job.begin + exposure / factor if fault is None else end])
        died = job.wait(until)
        if dp == DP:
            times.add(job)
        if not died and until in missing:  # a replica returns: the job ends with a checkpoint
            job.end(signal.SIGTERM)
            exposure -= (time.monotonic() - job.begin) * factor
            missing.remove(until)
            exposure = max(exposure, 1e-3)
            continue
        if not died:
            job.end(signal.SIGKILL)
        steps = job.steps
        if until == end and not died:
            break
        count += 1
        exposure = failures.next()
        time.sleep(max(0, min(args.detection, end - time.monotonic())))
        now = time.monotonic()
        free += sum(at <= now for at in repaired)
        repaired = [at for at in repaired if at > now] + [now + args.repair]
        if free > 0:
            free -= 1
        else:
            ready = min(repaired)
            repaired.remove(ready)
            if args.policy == "shrink" and len(missing) + 1 < DP:
                missing.append(ready)
                continue
            time.sleep(max(0, min(ready, end) - now))
        time.sleep(max(0, min(args.replacement, end - time.monotonic())))
    return steps, count


def simulated(args, times):
    step = times.step()
    op = step / (2 * (MICROBATCHES + PP - 1))
    command = [args.sluice, "goodput", "--json", "--quick", "--schedule", "1f1b", "--pp", PP, "--dp", DP,
               "--microbatches", MICROBATCHES, "--uniform", f"f={op},b={op},w=0", "--spare-gpus", 1,
               "--mtbf", f"uniform:{args.mtbf / 2}s:{1.5 * args.mtbf}s", "--policy", args.policy,
               "--spares", args.spares, "--repair", args.repair, "--detection", args.detection,
               "--replacement", args.replacement, "--init", times.start(), "--load", 0, "--checkpoint", "sync",
               "--checkpoint-stall", times.stall(), "--checkpoint-interval", f"{args.every}steps",
               "--days", args.seconds / 86400, "--trials", 4000, "--seed", args.seed]
    out = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="sluice", help="the command (default: sluice)")
    parser.add_argument("--launcher", default="", help="before it; RANKS is replaced, as in 'mpirun -n RANKS' "
                        "(default: none, ranks are threads)")
    for name, default, what in [("seconds", 1800, "of the run"), ("mtbf", 12, "running time between failures"),
                                ("detection", 1, "until a failure is noticed"),
                                ("replacement", 0.5, "until a spare is in its place"), ("repair", 8, "of a node")]:
        parser.add_argument(f"--{name}", type=float, default=default, help=f"seconds {what} (default {default})")
    for name, default, what in [("every", 8, "steps between checkpoints"), ("spares", 1, "spare nodes"),
                                ("seed", 1, "of the failures")]:
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default {default})")
    parser.add_argument("--policy", default="restart", choices=["restart", "shrink"], help="(default restart)")
    parser.add_argument("--tolerance", type=float, default=0.05, help="relative difference that is an error above "
                        "(default 0.05)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = Times(args.every)
        steps, count = experiment(args, times, folder)
    predicted = simulated(args, times)
    real = steps * times.step() / args.seconds
    print(f"measured: step {times.step():.4f} s, stall {times.stall():.4f} s, start {times.start():.3f} s")
    mean = predicted["goodput"]["mean"]
    quantiles = predicted["goodput_quantiles"]
    print(f"real: goodput {real:.4f}, {count} failures in {args.seconds:.0f} s")
    print(f"simulated: goodput {mean:.4f} (90 % of runs: {quantiles['p5']:.4f} to {quantiles['p95']:.4f}), "
          f"{predicted['failures_per_run']['mean']:.1f} failures")
    print(f"relative difference {mean / real - 1:+.2%}")
    return 0 if abs(mean / real - 1) <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
