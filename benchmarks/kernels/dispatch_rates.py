#!/usr/bin/env python3
"""Errors of DeepEP's dispatch and combine on one node, as model/cost/dispatchers.cc prices them; with --fit, constants
fitted to these rows.

    benchmarks/kernels/dispatch_rates.py DATA/deepep.csv.gz [--fit]

One set of constants for all GPUs. Tokens choose their experts at random. The table does not say in which format tokens
are dispatched: in 8 bits with a 32-bit scale per 128, as the times agree with the bandwidths in 8 bits of DeepEP's
docs/README_Hybrid-EP.md. Errors are of predicted over measured times; large: 4,096 tokens and more. --fit needs scipy.
"""

import collections
import csv
import gzip
import math
import statistics
import sys

# Of a kernel in us, of one multiprocessor per token and per copy in us, bytes per us of one multiprocessor; fraction of
# NVLink's bandwidth.
CONSTANTS = {"dispatch": (39, 0.44, 0.085, 29.4e3, 1), "combine": (48, 0.99, 0, 29.4e3, 0.74)}
ELEMENT_BYTES = {"dispatch": 1 + 4 / 128, "combine": 2}
NODES = {"H100": (8, 450e3), "B200": (8, 900e3), "B300": (8, 900e3), "GB200": (4, 900e3), "GB300": (4, 900e3)}


def ranks_reached(experts, per_token, ranks):
    """Returns the expected number of ranks that have at least one of the experts that a token chooses."""
    elsewhere = experts - experts // ranks
    return ranks * (1 - math.comb(elsewhere, per_token) / math.comb(experts, per_token))


def predicted(constants, row, kernel):
    """Returns the time of a kernel in us."""
    fixed, token, copy, rate, fraction = constants
    ranks, nvlink = NODES[row["gpu"]]
    tokens, size = float(row["tokens"]), ELEMENT_BYTES[kernel] * float(row["hidden"])
    copies = ranks_reached(int(row["experts"]), int(row["topk"]), ranks)
    busy = tokens * (token + copies * (copy + size / rate)) / float(row[kernel + "_sms"])
    wire = tokens * size * copies * (ranks - 1) / ranks / (nvlink * fraction)
    return fixed + (busy**4 + wire**4) ** 0.25


def fit(rows, kernel):
    """Returns constants with the least errors of the logarithms of `rows`."""
    from scipy.optimize import least_squares

    def residuals(logarithms):
        constants = [math.exp(x) for x in logarithms]
        return [math.log(predicted(constants, row, kernel) / float(row[kernel + "_us"])) for row in rows]

    start = [math.log(x or 1e-3) for x in CONSTANTS[kernel]]
    found = least_squares(residuals, start, loss="soft_l1", f_scale=0.1)
    return tuple(math.exp(x) for x in found.x)


def main():
    rows = []
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["library"].startswith("deepep (sglang 0.5.12") and row["nodes"] == "1" and row["gpu"] in NODES:
                rows.append(row)
    for kernel, constants in CONSTANTS.items():
        if "--fit" in sys.argv[2:]:
            print(f"{kernel}: " + ", ".join(f"{x:.4g}" for x in fit(rows, kernel)))
        errors = collections.defaultdict(list)
        for row in rows:
            error = predicted(constants, row, kernel) / float(row[kernel + "_us"]) - 1
            errors[row["gpu"]].append((float(row["tokens"]) >= 4096, error))
        for gpu, found in sorted(errors.items()):
            large = [error for is_large, error in found if is_large]
            print(f"{kernel:<9} {gpu:<6} {len(found):4} rows"
                  f"  mean error {100 * statistics.fmean(abs(error) for _, error in found):5.1f} %"
                  f"  large {100 * statistics.fmean(map(abs, large)):5.1f} %"
                  f"  bias {100 * statistics.fmean(error for _, error in found):+6.1f} %")


if __name__ == "__main__":
    main()
