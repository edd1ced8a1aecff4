#!/usr/bin/env python3
"""FLOP/s per multiprocessor of measured scans and convolutions, and the errors of the rates in model/blocks/scan.cc.

    benchmarks/kernels/scan_rates.py DATA/kernel_linear_attention.csv.gz

Scans of at least 2 * 10^10 FLOPs (Scan::flops_per_token; delta rules with at least 64 sequences x heads), convolutions
before Mamba-2 of at least 5 * 10^7 elements. Errors are of predicted over measured times, without launches.
"""

import collections
import csv
import gzip
import statistics
import sys

MULTIPROCESSORS = {"A100": 108, "H100": 132, "H200": 132, "B200": 148, "GB200": 152, "B300": 160, "GB300": 160}
RATES = {"mamba_chunk_scan_combined": 0.535e12, "chunk_gated_delta_rule": 0.66e12, "chunk_kda": 0.39e12,
         "causal_conv1d_fn": 43e9}
DELTA_CHUNK = 64


def size_of(row):
    """Returns the FLOPs of a row, and whether it is large enough to fill the GPU."""
    number = {key: float(row[key] or 0) for key in ("batch", "seq", "heads", "head_dim", "v_heads", "v_head_dim",
                                                    "d_state", "n_groups", "chunk", "d_conv")}
    tokens, heads, p, n = number["batch"] * number["seq"], number["heads"], number["head_dim"], number["d_state"]
    if row["kernel"] == "causal_conv1d_fn":
        elements = tokens * (heads * p + 2 * number["n_groups"] * n)
        return 2 * number["d_conv"] * elements, row["op"] == "mamba2" and elements >= 5e7
    if row["op"] == "mamba2":
        flops = tokens * (heads * (4 * n * p + 2 * number["chunk"] * p) + 2 * number["chunk"] * number["n_groups"] * n)
        return flops, flops >= 2e10
    values, n = number["v_heads"] or heads, p
    p, c = number["v_head_dim"] or p, DELTA_CHUNK
    flops = tokens * values * (6 * n * p + 2 * c * (3 * n + 2 * p) + 2 * c * c / 3)
    return flops, flops >= 2e10 and number["batch"] * values >= 64


def main():
    rates = collections.defaultdict(list)
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["kernel"] not in RATES or row["gpu"] not in MULTIPROCESSORS:
                continue
            flops, large = size_of(row)
            if large:
                rate = flops / (float(row["best_us"]) * 1e-6) / MULTIPROCESSORS[row["gpu"]]
                rates[row["kernel"], row["gpu"]].append(rate)
    for (kernel, gpu), measured in sorted(rates.items()):
        errors = [rate / RATES[kernel] - 1 for rate in measured]
        print(f"{kernel:<26} {gpu:<6} {len(measured):4} rows  median {statistics.median(measured) / 1e9:6.1f} GFLOP/s"
              f"  mean error {100 * statistics.fmean(map(abs, errors)):5.1f} %"
              f"  bias {100 * statistics.fmean(errors):+6.1f} %")


if __name__ == "__main__":
    main()
