import gc
import json
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import sluice


def test_ops_are_the_timeline_of_the_closed_form():
    result = sluice.simulate(schedule="1f1b", pp=4, microbatches=8)
    assert result.makespan_s == 33  # (m + p - 1) x 3 s (F 1 s, B 2 s)
    assert result.bubble_fraction == pytest.approx(3 / 11)  # (p - 1) / (m + p - 1)
    ops = result.ops[result.ops.compute]
    assert len(ops) == 4 * 8 * 2
    first = ops[(ops.rank == 3) & (ops.kind == sluice._result.OP_KINDS.index("F")) & (ops.microbatch == 0)]
    assert first.start.tolist() == [3_000_000_000]
    assert np.all(ops.end - ops.start == np.where(ops.kind == 0, 1_000_000_000, 2_000_000_000))
    assert np.array_equal(ops.rank, ops.stage)


def test_arrays_are_views_that_keep_the_prediction_alive():
    result = sluice.simulate(pp=4, microbatches=8)
    start = result.ops.start
    assert not start.flags.owndata and not start.flags.writeable
    assert start.__array_interface__["data"][0] == result._core.start.__array_interface__["data"][0]
    copy = start.copy()
    del result
    gc.collect()
    assert np.array_equal(start, copy)
    with pytest.raises(ValueError):
        start[0] = 1


def test_idle_time_is_complete():
    result = sluice.simulate(schedule="zb-h1", pp=4, microbatches=8, uniform="f=1,b=1,w=1,comm=0.1")
    idle = result.idle
    by_rank = np.bincount(idle.rank, weights=(idle.end - idle.start) / 1e9, minlength=4)
    assert np.allclose(by_rank, result.makespan_s - result.busy_s)
    causes = result.idle_by_cause_s
    assert np.allclose(sum(causes.values()), by_rank)
    for i, cause in enumerate(idle.CAUSES):
        mask = idle.cause == i
        sums = np.bincount(idle.rank[mask], weights=(idle.end - idle.start)[mask] / 1e9, minlength=4)
        assert np.allclose(sums, causes[cause]), cause


def test_memory_curves_have_the_peaks():
    result = sluice.simulate(model="llama3-8b", cluster="dgx-h100", pp=4, tp=2, gbs=64, seq_length=8192)
    for rank in range(4):
        curve = result.memory(rank)
        assert curve.total.max() == result.peak_memory_bytes[rank]
        assert np.all(np.diff(curve.time) > 0)
    assert result.fits is True
    assert result.to_dict()["schema"] == "sluice.simulation/1"
    with pytest.raises(sluice.InputError, match="rank: expected 0 to 3, got 4"):
        result.memory(4)
    without = sluice.simulate(result.scenario, memory=False)
    assert len(without.memory(0).time) == 0
    assert np.array_equal(without.peak_memory_bytes, result.peak_memory_bytes)


def test_the_error_class_is_that_of_measured_runs():
    keys = {"model": "llama3-8b", "cluster": "dgx-h100", "pp": 4, "tp": 2, "gbs": 64, "seq_length": 8192}
    result = sluice.simulate(**keys)
    found = result.error_class
    assert found == result.to_dict()["error_class"] == pickle.loads(pickle.dumps(result)).error_class
    assert found["class"]["gpu"] == "Hopper" == result.resolved["facts"]["gpu"]
    assert found["low_s"] < found["median"] * result.iteration_s < found["high_s"]
    assert sluice.simulate(**{**keys, "cluster": "p3.16xlarge", "tp": 1}).error_class is None
    assert sluice.simulate(pp=4, microbatches=8).error_class is None


def test_slack_is_zero_on_the_critical_path():
    result = sluice.simulate(schedule="gpipe", pp=3, microbatches=5)
    assert np.all(result.slack()[result.critical_path] == 0)
    assert result.ops.end[result.critical_path[-1]] == result.makespan_s * 1e9


def test_results_pickle():
    result = sluice.simulate(schedule="zb-v", pp=4, microbatches=8)
    again = pickle.loads(pickle.dumps(result))
    assert repr(again) == repr(result)
    assert np.array_equal(again.ops.start, result.ops.start) and np.array_equal(again.ops.rank, result.ops.rank)
    assert np.array_equal(again.idle.cause, result.idle.cause)
    assert again.schedule == result.schedule
    assert again.svg() == result.svg()
    assert pickle.dumps(again) == pickle.dumps(pickle.loads(pickle.dumps(again)))


def test_pictures(tmp_path):
    result = sluice.simulate(schedule="1f1b", pp=2, microbatches=4)
    assert result.svg().startswith("<svg") or "<svg" in result.svg()[:200]
    assert "rank 1" in result.gantt() or "1 " in result.gantt()
    frame = result._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and "&lt;body class=&quot;embedded&quot;&gt;" in frame
    assert '<body class="embedded">' not in result.report()
    trace = tmp_path / "trace.json"
    result.write_trace(trace)
    assert json.loads(trace.read_text())["traceEvents"]
    result.write_ops(tmp_path / "ops.csv")
    assert len((tmp_path / "ops.csv").read_text().splitlines()) == 1 + len(result.ops)
    with pytest.raises(sluice.InputError, match="nowhere"):
        result.write_trace(tmp_path / "nowhere" / "trace.json")


def test_tables_in_pandas():
    pandas = pytest.importorskip("pandas")
    table = sluice.simulate(schedule="1f1b", pp=2, microbatches=4).ops.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table[table.vertex == "compute"].groupby("kind").size().to_dict() == {"B": 8, "F": 8}


def test_the_global_lock_is_released():
    big = sluice.Scenario(schedule="1f1b", pp=64, microbatches=2000)
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    sluice.simulate(big, memory=False)
    end = time.perf_counter()
    done.set()
    thread.join()
    inside = [t for t in ticks if begin < t < end]
    assert len(inside) >= 5, f"{len(inside)} ticks in {end - begin:.3f} s"


def test_interrupts_end_a_search():
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        sluice.simulate(schedule="auto", pp=8, microbatches=32, time_budget=60.0, uniform="f=10,b=12,w=8,comm=1")
        time.sleep(1)
    assert time.perf_counter() - begin < 20


def test_interrupts_end_a_large_simulation():
    # The signal comes while the simulation runs, which then ends at one of its steps, before its result is there.
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    result = None
    with pytest.raises(KeyboardInterrupt):
        result = sluice.simulate(schedule="1f1b", pp=8, microbatches=200_000, uniform="f=1,b=1,w=1,comm=0.1")
        time.sleep(1)
    assert result is None


def test_automatic_schedules():
    result = sluice.simulate(schedule="auto", pp=4, microbatches=8, uniform="f=1,b=1,w=1", time_budget=1.0)
    best = sluice.simulate(schedule="zb-h2", pp=4, microbatches=8, uniform="f=1,b=1,w=1")
    assert result.makespan_s <= best.makespan_s
    again = sluice.simulate(schedule=result.schedule, uniform="f=1,b=1,w=1")
    assert again.makespan_s == result.makespan_s


def test_assumptions_are_those_that_the_scenario_does_not_set():
    keys = {"model": "llama3-8b", "cluster": "dgx-h100", "pp": 4, "gbs": 16, "seq_length": 8192}
    result = sluice.simulate(**keys)
    settings = [row["setting"] for row in result.assumptions]
    assert "/software" in settings and "/parallelism/recompute" in settings
    assert result.assumptions == result.to_dict()["assumptions"] == pickle.loads(pickle.dumps(result)).assumptions
    given = [row["setting"] for row in sluice.simulate(**keys, recompute="full").assumptions]
    assert "/parallelism/recompute" not in given


def test_blackwell_has_one_copy_of_8_bit_weights_with_a_scale_per_tensor():
    """A scale per block needs two layouts: one byte more per parameter of linear layers, besides scales."""
    def needed(precision):
        return sluice.simulate(model="llama3-8b", cluster="dgx-b200", pp=1, dp=8, gbs=8, seq_length=2048,
                               precision=precision).needed_bytes

    hidden, keys_values, ffn = 4096, 1024, 14336
    linear = 32 * hidden * (2 * hidden + 2 * keys_values + 3 * ffn)
    assert linear < needed("mxfp8") - needed("fp8-current") < 1.2 * linear
