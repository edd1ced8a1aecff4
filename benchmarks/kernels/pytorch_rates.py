#!/usr/bin/env python3
"""Times kernels of training in PyTorch on one GPU, of which published tables lack the backward passes, and prints them as CSV.

    pytorch_rates.py [--seconds N] [--parts NAME,...] > rates.csv

steps: what a step adds whatever its batch, the fused AdamW and the global norm by number of tensors, and the host's time per
launch. norms: RMSNorm. attention: by cuDNN. experts: grouped GEMMs (forward, input gradient, weight gradient; all groups
with the same number of rows). packed: attention of packed documents (documents "4096+2x512" are three) and of a chunk after
a context, by PyTorch's flash attention and cuDNN. copies: ten GEMMs, or a copy within memory, beside copies to and from the
host. Columns: gpu, kernel, pass, the sizes that the kernel has, us (median of 12 after a flush of the L2 cache),
half_interquartile_us. A size that the library does not support is left out, with a line on stderr. Needs PyTorch 2.9, and
2.10 for packed documents.
"""

import argparse
import csv
import inspect
import itertools
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

COLUMNS = ["gpu", "kernel", "pass", "groups", "rows", "n", "k", "sequences", "tokens", "heads", "head_dim", "value_head_dim",
           "tensors", "elements", "documents", "context", "beside", "us", "half_interquartile_us"]
# Width of the model, and of an expert, gated: qwen3-30b-a3b, qwen3-235b-a22b, deepseek-v3, gpt-oss, mixtral-8x7b, llama4.
EXPERTS = [(2048, 768), (4096, 1536), (7168, 2048), (2880, 2880), (4096, 14336), (5120, 8192)]
REPETITIONS = 12


class Timer:
    def __init__(self, seconds):
        self.until = time.monotonic() + seconds
        self.flushed = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
        self.out = csv.DictWriter(sys.stdout, COLUMNS)
        self.out.writeheader()

    def add(self, call, **row):
        """Times a call without arguments and prints a row."""
        if time.monotonic() > self.until:
            return
        try:
            for _ in range(3):
                call()
            times = []
            for _ in range(REPETITIONS):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                self.flushed.zero_()
                begin.record()
                call()
                end.record()
                end.synchronize()
                times.append(1e3 * begin.elapsed_time(end))
        except (RuntimeError, ValueError, torch.OutOfMemoryError) as error:
            print(f"left out {row}: {str(error).splitlines()[0]}", file=sys.stderr)
            return
        quartiles = statistics.quantiles(times, n=4)
        self.out.writerow({"gpu": torch.cuda.get_device_name(), **row, "us": f"{statistics.median(times):.2f}",
                           "half_interquartile_us": f"{(quartiles[2] - quartiles[0]) / 2:.2f}"})


def bf16(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def grouped_gemms(timer):
    for groups in (4, 16, 64):
        for rows in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
            if groups * rows > 65536:
                continue
            ends = torch.arange(rows, groups * rows + 1, rows, device="cuda", dtype=torch.int32)
            for hidden, inter in EXPERTS:
                for n, k in ((2 * inter, hidden), (hidden, inter)):
                    if 2 * groups * n * k > 16 << 30:
                        continue
                    row = {"kernel": "grouped_gemm", "groups": groups, "rows": rows, "n": n, "k": k}
                    x, dy = bf16(groups * rows, k), bf16(groups * rows, n)
                    weights = bf16(groups, n, k)
                    timer.add(lambda: torch._grouped_mm(x, weights.transpose(-2, -1), offs=ends), **row, **{"pass": "forward"})
                    timer.add(lambda: torch._grouped_mm(dy, weights, offs=ends), **row, **{"pass": "input_gradient"})
                    timer.add(lambda: torch._grouped_mm(dy.t(), x, offs=ends), **row, **{"pass": "weight_gradient"})


def attention(timer):
    for head_dim, value_head_dim in ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256)):
        for heads, tokens in ((32, 1024), (32, 2048), (16, 4096), (32, 4096), (8, 8192), (32, 8192), (8, 16384)):
            row = {"kernel": "attention", "sequences": 1, "tokens": tokens, "heads": heads, "head_dim": head_dim,
                   "value_head_dim": value_head_dim}
            query, key = (bf16(1, heads, tokens, head_dim).requires_grad_() for _ in range(2))
            value = bf16(1, heads, tokens, value_head_dim).requires_grad_()

            def forward():
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

            with torch.no_grad():
                timer.add(forward, **row, **{"pass": "forward"})
            try:
                out = forward()
            except RuntimeError:
                continue
            gradient = torch.randn_like(out)
            timer.add(lambda: torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True), **row,
                      **{"pass": "backward"})


PACKED = ["8192", "2x4096", "4x2048", "8x1024", "16x512", "64x128", "4096+2048+1024+512+256+128+2x64", "7168+8x128", "6144+16x128",
          "32768", "4x8192", "16384+8192+4096+2048+1024+512+2x256", "16384+32x512"]


def lengths(text):
    for part in text.split("+"):
        count, _, length = part.rpartition("x")
        yield from [int(length)] * int(count or 1)


def packed_calls(query, key, value, ends_q, ends_k, longest_q, longest_k):
    """The calls of two libraries, by kernel. Tensors [tokens, heads, head_dim], causal from the end of each document."""
    from torch.nn.attention.varlen import varlen_attn

    causal = {"window_size": (-1, 0)} if "window_size" in inspect.signature(varlen_attn).parameters else {"is_causal": True}
    yield "packed_flash", lambda: varlen_attn(query, key, value, ends_q, ends_k, longest_q, longest_k, **causal)


def ends(documents):
    return torch.tensor([0, *itertools.accumulate(documents)], device="cuda", dtype=torch.int32)


def packed(timer):
    heads, head_dim = 32, 128
    chunks = [(n, c) for n in (512, 2048, 8192) for c in (0, 8192, 32768, 122880)]
    for text, context in [(text, 0) for text in PACKED] + [(str(n), c) for n, c in chunks]:
        documents = list(lengths(text))
        tokens = sum(documents)
        query = bf16(tokens, heads, head_dim).requires_grad_()
        key, value = (bf16(tokens + context, heads, head_dim).requires_grad_() for _ in range(2))
        row = {"tokens": tokens, "heads": heads, "head_dim": head_dim, "value_head_dim": head_dim, "documents": text,
               "context": context}
        calls = packed_calls(query, key, value, ends(documents), ends([d + context for d in documents]), max(documents),
                             max(documents) + context)
        for kernel, forward in calls:
            with torch.no_grad():
                timer.add(forward, kernel=kernel, **row, **{"pass": "forward"})
            try:
                out = forward()
                gradient = torch.randn_like(out)
                timer.add(lambda: torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True), kernel=kernel, **row,
                          **{"pass": "backward"})
            except (RuntimeError, NotImplementedError) as error:
                print(f"left out {kernel} {row}: {str(error).splitlines()[0]}", file=sys.stderr)


def copies(timer):
    there = torch.empty(1 << 29, dtype=torch.uint8, pin_memory=True)
    back = torch.empty(1 << 29, dtype=torch.uint8, pin_memory=True)
    here, other = (torch.zeros(1 << 29, dtype=torch.uint8, device="cuda") for _ in range(2))
    a, b = bf16(8192, 8192), bf16(8192, 8192)
    large, twin = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    out, home = torch.cuda.Stream(), torch.cuda.Stream()

    def gemms():
        for _ in range(10):
            torch.mm(a, b)

    def memory():
        for _ in range(10):
            large.copy_(twin)

    for beside in ("none", "out", "home", "both"):
        def begin(beside=beside):
            for stream, name in ((out, "out"), (home, "home")):
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    if beside in (name, "both"):
                        if name == "out":
                            there.copy_(here, non_blocking=True)
                        else:
                            other.copy_(back, non_blocking=True)

        def both(work):
            begin()
            work()

        for name, work in (("gemm", gemms), ("copy", memory)):
            torch.cuda.synchronize()
            timer.add(lambda: both(work), kernel=name, n=8192, k=8192, beside=beside)
            torch.cuda.synchronize()

        def wait():
            begin()
            torch.cuda.current_stream().wait_stream(out)
            torch.cuda.current_stream().wait_stream(home)

        if beside != "none":
            timer.add(wait, kernel="host_copy", elements=1 << 29, beside=beside)

            def with_gemms():
                begin()
                gemms()
                torch.cuda.current_stream().wait_stream(out)
                torch.cuda.current_stream().wait_stream(home)

            timer.add(with_gemms, kernel="host_copy_and_gemm", elements=1 << 29, beside=beside)


def norms(timer):
    for hidden in (2048, 4096, 8192):
        for tokens in (2048, 8192):
            row = {"kernel": "rms_norm", "tokens": tokens, "n": hidden}
            x, gain = bf16(tokens, hidden).requires_grad_(), bf16(hidden).requires_grad_()
            out = torch.nn.functional.rms_norm(x, (hidden,), gain)
            gradient = torch.randn_like(out)
            with torch.no_grad():
                timer.add(lambda: torch.nn.functional.rms_norm(x, (hidden,), gain), **row, **{"pass": "forward"})
            timer.add(lambda: torch.autograd.grad(out, (x, gain), gradient, retain_graph=True), **row, **{"pass": "backward"})


def steps(timer):
    for elements in (1 << 22, 1 << 28):
        for tensors in (1, 16, 128, 1024):
            parts = [torch.zeros(elements // tensors, device="cuda") for _ in range(tensors)]
            gradients = [torch.ones_like(part) for part in parts]
            moments = [[torch.zeros_like(part) for part in parts] for _ in range(2)]
            numbers = [torch.ones((), device="cuda") for _ in parts]
            row = {"tensors": tensors, "elements": elements, "pass": "step"}
            timer.add(lambda: torch._fused_adamw_(parts, gradients, *moments, [], numbers, lr=1e-9, beta1=0.9, beta2=0.95,
                                                  weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False),
                      kernel="adamw", **row)
            timer.add(lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))), kernel="global_norm", **row)
    small = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(1000):
        small.add_(1)
    host_us = 1e3 * (time.perf_counter() - begin)
    torch.cuda.synchronize()
    timer.out.writerow({"gpu": torch.cuda.get_device_name(), "kernel": "host_launch", "pass": "forward",
                        "us": f"{host_us:.2f}"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=120, help="leave out what would begin after this time (default 120)")
    parts = {"steps": steps, "norms": norms, "attention": attention, "experts": grouped_gemms, "packed": packed, "copies": copies}
    parser.add_argument("--parts", default=",".join(parts), help="those to time (default: all)")
    options = parser.parse_args()
    timer = Timer(options.seconds)
    for part in options.parts.split(","):
        parts[part](timer)


if __name__ == "__main__":
    main()
