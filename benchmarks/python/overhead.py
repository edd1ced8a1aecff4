"""Compares predictions through Python with direct calls of the library.

    cmake --build build/release --target direct
    python benchmarks/python/overhead.py build/release/benchmarks/direct

Prints medians over alternating runs of both: one prediction of a graph with 1,000,000 vertices, including the read of
its arrays, and the number of small predictions per second.
"""

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import sluice

LARGE = dict(schedule="1f1b", pp=64, microbatches=4000, uniform="f=1,b=1,w=1,comm=0.1")
SMALL = dict(schedule="1f1b", pp=4, microbatches=8)
ROUNDS = 9


def through_python(scenario, count):
    begin = time.perf_counter()
    for _ in range(count):
        result = sluice.simulate(scenario)
        result.ops.start.max(), result.iteration_s
    return (time.perf_counter() - begin) / count, len(result.ops)


def direct(program, scenario, count):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "scenario.json"
        path.write_text(scenario.to_json())
        done = subprocess.run([program, str(path), str(count)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return statistics.fmean(float(row[0]) for row in rows), int(rows[0][1])


def main():
    program = sys.argv[1]
    for name, keys, count in (("large", LARGE, 2), ("small", SMALL, 2000)):
        scenario = sluice.Scenario(**keys)
        pairs = []
        for _ in range(ROUNDS):
            python, vertices = through_python(scenario, count)
            library, expected = direct(program, scenario, count)
            assert vertices == expected
            pairs.append((python, library))
        python, library = (statistics.median(column) for column in zip(*pairs))
        ratios = sorted(a / b for a, b in pairs)
        print(
            f"{name}: {vertices} vertices: Python {1e3 * python:.4g} ms ({1 / python:.4g} per second), "
            f"library {1e3 * library:.4g} ms; ratio {statistics.median(ratios):.3f} "
            f"(quartiles {ratios[ROUNDS // 4]:.3f} to {ratios[-1 - ROUNDS // 4]:.3f})"
        )


if __name__ == "__main__":
    main()
