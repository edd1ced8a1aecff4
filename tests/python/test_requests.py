import json
import os
import signal
import subprocess
import threading

import pytest
import sluice

LLAMA = dict(model="llama3-8b", cluster="dgx-h100", gbs=64, seq_length=8192)
SMALL = dict(gpus=8, tp=[2], mbs=[1], schedules=["1f1b", "zb-h1"], recompute=["none"])


def test_a_plan_ranks_configurations():
    plan = sluice.plan(sluice.Scenario(**LLAMA), **SMALL, top=3)
    times = [row["iteration_s"] for row in plan.rows]
    assert times == sorted(times) and len(plan) > 1
    assert plan["schema"] == "sluice.plan/1"
    for row in range(len(plan)):
        assert sluice.simulate(plan.scenario(row)).iteration_s == pytest.approx(times[row], rel=1e-9)
    assert plan._repr_html_().count("<tr>") == 1 + min(len(plan), 10)
    assert list(plan.to_pandas().iteration_s) == times


def test_plans_that_do_not_exist():
    with pytest.raises(sluice.DoesNotFit):
        sluice.plan(sluice.Scenario(**{**LLAMA, "model": "llama3-70b"}), gpus=1)
    with pytest.raises(sluice.InputError, match=r"equals 8 GPUs of --gpus \(--tp 3\)"):
        sluice.plan(sluice.Scenario(**LLAMA), gpus=8, tp=[3])
    with pytest.raises(sluice.InputError, match="1f2b"):
        sluice.plan(sluice.Scenario(**LLAMA), gpus=8, schedules=["1f2b"])
    with pytest.raises(TypeError, match="gpu"):
        sluice.plan(sluice.Scenario(**LLAMA), gpu=8)


def test_interrupts_end_a_plan():
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        sluice.plan(sluice.Scenario(**LLAMA), gpus=64)


def test_cuts_of_sequences(source, tmp_path):
    cut = sluice.slice(source / "examples/gpt3-13b-terapipe-v100.json", granularity=64)
    assert sum(cut.lengths) == cut["tokens"]
    assert cut["slice_lengths"] == cut.lengths
    even = sluice.slice(source / "examples/gpt3-13b-terapipe-v100.json", balanced=True, slices=4)
    assert len(even.lengths) == 4
    times = tmp_path / "chunks.csv"
    times.write_text("tokens,context,seconds\n100,0,1\n100,100,2\n")
    assert sluice.slice(sluice.Scenario(pp=3, seq_length=200), times=times, slices=2)["even_s"] == pytest.approx(7)
    with pytest.raises(sluice.InputError, match="tp: has no effect"):
        sluice.slice(sluice.Scenario(pp=3, tp=2, seq_length=200), times=times)
    with pytest.raises(sluice.InputError, match="exclude each other"):
        sluice.slice(source / "examples/gpt3-13b-terapipe-v100.json", balanced=True, joint=2)


def test_sweeps():
    sweep = sluice.sweep(sluice.Scenario(**LLAMA, pp=2), {"tp": [1, 2], "schedule": ["1f1b", "zb-v"]}, gpus=8)
    assert [(row["tp"], row["schedule"]) for row in sweep] == [(1, "1f1b"), (1, "zb-v"), (2, "1f1b"), (2, "zb-v")]
    # Layers per stage that are not specified are chosen for each schedule.
    single = sluice.simulate(**LLAMA, pp=2, tp=2, gpus=8, schedule="zb-v")
    assert sweep[3]["iteration_s"] <= single.iteration_s
    fixed = sluice.sweep(sluice.Scenario(**LLAMA, pp=2, tp=2, stage_layers=[8] * 4), {"schedule": ["zb-v"]}, gpus=8)
    assert fixed[0]["iteration_s"] == single.iteration_s
    assert sweep.best() in sweep.rows
    assert "error" in sluice.sweep(axes={"pp": [0, 2]}, microbatches=4)[0]
    with pytest.raises(sluice.InputError, match="exclude each other"):
        sluice.sweep(sluice.Scenario(**LLAMA), {"gbs": [64], "microbatches": [4]})


def test_a_correction_of_measured_iterations(source, tmp_path):
    scenario = sluice.Scenario(**LLAMA, pp=4, tp=2)
    table = tmp_path / "ours.csv"
    rows = [f"{gbs},{1.3 * sluice.simulate(scenario.replace(gbs=gbs)).iteration_s}" for gbs in (32, 64, 128)]
    table.write_text("gbs,iteration_s\n" + "\n".join(rows) + "\n")
    output = tmp_path / "ours.calibration.json"
    fit = sluice.calibrate(table, scenario, output=output)
    assert fit["kept"] == "scale" and fit["fixed_s"] == 0
    assert 1.2 < fit["scale"] < 1.3 and 0.7 < fit["weight"] < 1
    corrected = sluice.simulate(scenario.replace(calibration=output))
    assert corrected.iteration_s == pytest.approx(fit["scale"] * sluice.simulate(scenario).iteration_s)
    with pytest.raises(sluice.InputError, match="no table has a column 'colour'"):
        sluice.calibrate(table, scenario, ignore_columns=["colour"])


def test_measured_steps(source):
    analysis = sluice.analyze(source / "tests/traces/measured/samples/primus_pp8")
    assert analysis["schema"] == "sluice.analysis/1"
    assert "<svg" in analysis.heat_maps[:200]
    assert sluice.simulate(analysis.scenario).schedule.num_ranks == 8
    with pytest.raises(sluice.InputError, match="nowhere"):
        sluice.analyze("nowhere.json")


def test_comparisons(tmp_path):
    fast = sluice.simulate(pp=2, microbatches=4)
    slow = sluice.simulate(pp=2, microbatches=4, uniform="f=2,b=2,w=2")
    comparison = sluice.compare(fast, slow)
    assert comparison["schema"] == "sluice.comparison/1"
    path = tmp_path / "trace.json"
    slow.write_trace(path)
    ops = sluice.read_ops(path)
    assert [row.op for row in ops if row.rank == 1] == slow.schedule.ops(1)
    assert ops[0].end - ops[0].start == 2_000_000_000
    with pytest.raises(sluice.InputError, match="same stages"):
        sluice.compare(fast, sluice.simulate(pp=4, microbatches=4))


def test_goodput_is_that_of_the_command() -> None:
    run = sluice.goodput(gpus=64, dp=8, mtbf="5h", policy="drop", days=10, trials=51, quick=True)
    assert run["schema"] == "sluice.goodput/1"
    assert run.goodput == run["goodput"]["mean"] < 1
    assert sum(run.uses.values()) == pytest.approx(1)
    assert run.svg.startswith("<svg") and "the median" in run.svg
    assert json.loads(run.trace)["traceEvents"]
    llama = sluice.Scenario(**LLAMA, pp=2, tp=4, dp=8, schedule="1f1b")
    simulated = sluice.goodput(llama, mtbf="5h", policy="drop", days=10, trials=51, quick=True)
    assert simulated["step_s"] == pytest.approx(sluice.simulate(llama).iteration_s)
    assert simulated["gpus"] == 64
    with pytest.raises(sluice.InputError, match="--polcy"):
        sluice.goodput(gpus=64, polcy="drop")
    with pytest.raises(sluice.InputError, match="gpus"):
        sluice.goodput()
