#!/usr/bin/env python3
"""Times the kernels of recurrent blocks in PyTorch on one GPU, forward and backward, and prints them as CSV.

    pytorch_scans.py [--seconds N] [--kernels NAME,...] > scans.csv

mamba2 is mamba_chunk_scan_combined of mamba-ssm; gdn and kda are chunk_gated_delta_rule and chunk_kda of flash-linear-attention;
conv is the latter's causal_conv1d. Columns as in published tables of forwards (batch, seq, heads, head_dim, v_heads, v_head_dim,
d_state, n_groups, chunk), with pass, us (median of 12 after a flush of the L2 cache) and half_interquartile_us. A backward is
that of autograd alone, after a forward that is not timed. What is not installed or fails is left out, with a line on stderr.
"""

import argparse
import csv
import statistics
import sys
import time

import torch

COLUMNS = ["gpu", "op", "kernel", "pass", "batch", "seq", "d_model", "heads", "head_dim", "v_heads", "v_head_dim", "d_state",
           "n_groups", "chunk", "us", "half_interquartile_us"]
REPETITIONS = 12


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda", dtype=dtype).mul_(0.5).requires_grad_()


def mamba2():
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    # Heads, groups and sequences of nemotron-3-nano, nemotron-h-8b, a tensor rank of it, and smaller batches.
    for batch, seq, heads, groups, chunk in ((1, 8192, 64, 8, 128), (1, 8192, 128, 8, 128), (2, 4096, 64, 8, 128),
                                             (1, 8192, 32, 2, 128), (1, 4096, 64, 8, 128), (1, 8192, 64, 8, 256)):
        x, dt = random(batch, seq, heads, 64), random(batch, seq, heads)
        b, c = random(batch, seq, groups, 128), random(batch, seq, groups, 128)
        a = -torch.rand(heads, device="cuda").add_(1).detach()
        a, d, bias = (t.requires_grad_() for t in (a, torch.ones(heads, device="cuda"), torch.zeros(heads, device="cuda")))
        row = {"kernel": "mamba_chunk_scan_combined", "batch": batch, "seq": seq, "heads": heads, "head_dim": 64, "d_state": 128,
               "n_groups": groups, "chunk": chunk}

        def call(x=x, dt=dt, a=a, b=b, c=c, chunk=chunk, d=d, bias=bias):
            return mamba_chunk_scan_combined(x, dt, a, b, c, chunk, D=d, dt_bias=bias, dt_softplus=True)

        yield row, call, (x, dt, a, b, c, d, bias)


def delta(name):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda

    rule = chunk_gated_delta_rule if name == "gdn" else chunk_kda
    for batch, seq, heads in ((1, 8192, 32), (2, 4096, 32), (1, 4096, 32), (1, 8192, 16), (4, 8192, 32)):
        q, k, v = (random(batch, seq, heads, 128) for _ in range(3))
        gate = (batch, seq, heads) if name == "gdn" else (batch, seq, heads, 128)
        g = torch.nn.functional.logsigmoid(torch.randn(gate, device="cuda")).detach().requires_grad_()
        beta = torch.rand(batch, seq, heads, device="cuda", dtype=torch.bfloat16).requires_grad_()
        row = {"kernel": rule.__name__, "batch": batch, "seq": seq, "heads": heads, "head_dim": 128, "v_heads": heads,
               "v_head_dim": 128}

        def call(q=q, k=k, v=v, g=g, beta=beta):
            return rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0]

        yield row, call, (q, k, v, g, beta)


def conv():
    from fla.modules.causal_conv1d import causal_conv1d

    for batch, seq, channels in ((1, 8192, 6144), (1, 8192, 10240), (1, 4096, 8192)):
        x, weight = random(batch, seq, channels), random(channels, 4)

        def call(x=x, weight=weight):
            return causal_conv1d(x, weight, activation="silu")[0]

        yield {"kernel": "causal_conv1d", "batch": batch, "seq": seq, "d_model": channels}, call, (x, weight)


def median_us(call, flushed):
    for _ in range(3):
        call()
    times = []
    for _ in range(REPETITIONS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flushed.zero_()
        torch.cuda._sleep(30_000_000)  # cycles, some 15 ms, in which the host issues the launches
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    quartiles = statistics.quantiles(times, n=4)
    return statistics.median(times), (quartiles[2] - quartiles[0]) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=300, help="leave out what would begin after this time (default 300)")
    parser.add_argument("--kernels", default="mamba2,gdn,kda,conv", help="those to time (default: all)")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    parts = {"mamba2": mamba2, "gdn": lambda: delta("gdn"), "kda": lambda: delta("kda"), "conv": conv}
    flushed = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    out = csv.DictWriter(sys.stdout, COLUMNS)
    out.writeheader()
    for name in options.kernels.split(","):
        try:
            for row, call, inputs in parts[name]():
                if time.monotonic() > until:
                    break
                row = {"gpu": torch.cuda.get_device_name(), "op": name, **row}
                with torch.no_grad():
                    us, spread = median_us(call, flushed)
                out.writerow({**row, "pass": "forward", "us": f"{us:.2f}", "half_interquartile_us": f"{spread:.2f}"})
                result = call()
                gradient = torch.randn_like(result)
                us, spread = median_us(lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True), flushed)
                out.writerow({**row, "pass": "backward", "us": f"{us:.2f}", "half_interquartile_us": f"{spread:.2f}"})
                sys.stdout.flush()
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            print(f"left out {name}: {str(error).splitlines()[0]}", file=sys.stderr)


if __name__ == "__main__":
    main()
