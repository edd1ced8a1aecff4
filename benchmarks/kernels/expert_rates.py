#!/usr/bin/env python3
"""Measured over predicted times of the experts of a layer in inference frameworks, by GPU, type and rows per expert.

    benchmarks/kernels/expert_rates.py DATA/kernel_moe.csv.gz

Predicted are the two grouped GEMMs alone, as model/cost/gemm.cc prices them with the constants of the catalogue without
what a long run loses, and these with the bytes that permutations and activation move, at 80 % of the memory bandwidth,
and 30 us for the choice of experts and the launches. Casts are part of the rates. Balanced layers of one rank, the
fastest framework.
"""

import csv
import gzip
import json
import math
import os
import statistics
import sys

CATALOGUE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../model/cluster/catalogue/gpus")
FILES = {"A100": "a100-80gb", "H100": "h100-80gb", "H200": "h200-141gb", "B200": "b200-180gb", "B300": "b300-270gb",
         "GB200": "gb200-186gb", "GB300": "gb300-279gb"}
BYTES = {"bf16": 2, "fp8": 1, "fp8_block": 1, "nvfp4": 0.5 + 1 / 16}  # of an operand's element
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (256, 64), (64, 256), (64, 64), (32, 128), (32, 64))
FEWEST_ROWS = (1, 64, 256, 1024, 4096)


def gpu_of(name):
    with open(os.path.join(CATALOGUE, FILES[name] + ".json"), encoding="utf-8") as file:
        return json.load(file)


def gemm_s(gpu, element_bytes, groups, m, n, k):
    """Returns the time of a grouped GEMM in seconds: gemm_time."""
    narrow = gpu.get({2: "", 1: "gemm_8bit"}.get(element_bytes, "gemm_4bit"), {})
    constants = {**gpu["gemm"], **narrow}
    peak = narrow.get("peak_flops_per_s", gpu["peak_flops_per_s"]["value"])
    sms, bandwidth = gpu["sms"]["value"], gpu["memory_bandwidth_bytes_per_s"]["value"]
    memory = bandwidth * constants["memory_efficiency"]
    best = math.inf
    for rows, columns in TILES:
        tiles = groups * math.ceil(m / rows) * math.ceil(n / columns)
        edge = 1 + constants["operand_edge"] * (1 / rows + 1 / columns)
        arithmetic = rows * columns * 2 * k / (peak * constants["peak_fraction"] / sms) * edge
        result = rows * columns * constants["exposed_write"] * 2 * sms / bandwidth
        for parts in (1, 2, 4, 8) if tiles < sms else (1,):
            waves = 0.7 * max(1, tiles * parts / sms) + 0.3 * math.ceil(tiles * parts / sms)
            added = parts * 8 * groups * m * n / memory if parts > 1 else 0
            best = min(best, waves * (arithmetic / parts + result) + added)
    moved = groups * (element_bytes * (m * k + k * n) + 2 * m * n) / memory
    return (best**4 + moved**4) ** 0.25 + constants["launch_s"]


def predicted_s(row):
    """Returns the rows per expert, the time of both GEMMs, and that of the rest of the layer."""
    gpu, size = gpu_of(row["gpu"]), BYTES[row["dtype"]]
    hidden, inter, ranks = int(row["hidden"]), int(row["inter"]), int(row["ep"])
    experts = int(row["experts"]) / ranks
    rows = int(row["tokens"]) * int(row["topk"]) / ranks / experts
    width_in = (1 + int(row["gated"])) * inter
    first = gemm_s(gpu, size, experts, rows, width_in, hidden)
    # Rows are copied in order, results read in order and added per token, and the activation reads and writes its own.
    moved = 2 * experts * rows * (3 * hidden + width_in + inter) + 2 * hidden * min(int(row["tokens"]), experts * rows)
    rest = moved / (0.8 * gpu["memory_bandwidth_bytes_per_s"]["value"]) + 30e-6
    return rows, first + gemm_s(gpu, size, experts, rows, hidden, inter), rest


def main():
    ratios = {}
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["what"] != "layer" or row["distribution"] != "balanced" or row["dtype"] not in BYTES:
                continue
            rows, gemms, rest = predicted_s(row)
            group = row["gpu"], row["dtype"], max(fewest for fewest in FEWEST_ROWS if rows >= fewest or fewest == 1)
            seconds = float(row["best_us"]) * 1e-6
            ratios.setdefault(group, []).append((seconds / gemms, seconds / (gemms + rest)))
    for (gpu, dtype, fewest), values in sorted(ratios.items()):
        alone, whole = map(statistics.median, zip(*values))
        print(f"{gpu:5} {dtype:9} {fewest:5} rows and more: {len(values):3} layers, median {alone:.2f}, {whole:.2f}")


if __name__ == "__main__":
    main()
