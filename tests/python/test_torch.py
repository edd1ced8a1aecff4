"""PyTorch's pipelining runs our schedules. Needs PyTorch; tests/pytorch/install.sh installs it."""

import functools
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys

import pytest
import sluice

torch = pytest.importorskip("torch", reason="SKIPPED: PyTorch is not installed: tests/pytorch/install.sh installs it")

FAMILIES = [row["name"] for row in sluice.families()]
# By family: what PyTorch's format cannot express. All others run.
REFUSED = {
    "terapipe": "slices",
    "seq1f1b": "slices",
    "eager-seq1f1b": "slices",
    "seq1f1b-interleaved": "slices",
    "seq1f1b-zb1p": "slices",
    "seq1f1b-zb2p": "slices",
    "dualpipe": "stages on two ranks",
    "chimera": "stages on two ranks",
    "pipedream": "schedules without a flush",
    "pipedream-2bw": "schedules without a flush",
    "1f1b-vocab-1": "vocabulary passes",
    "1f1b-vocab-2": "vocabulary passes",
    "v-half-vocab-1": "vocabulary passes",
    "v-half-vocab-2": "vocabulary passes",
    "interlaced": "vocabulary passes",
}

QUIET = 0.02  # largest fraction of its time in which a process of a quiet machine waits for a core


# By number of ranks: what one start runs, task by task, and with which families ("": all).
TASKS = {
    2: {"run": "", "share": "zb-v,dualpipe-v,1f1b", "replicas": "1f1b", "torchtitan": "1f1b,interleaved-zb,zb-v,hanayo"},
    4: {"run": ""},
}


def start(folder, ranks, tasks):
    """Returns the results by family of each task that ended."""
    script = pathlib.Path(__file__).parent / "pipelines.py"
    words = [f"{task}={families}" for task, families in tasks.items()]
    done = subprocess.run(
        [sys.executable, str(script), str(ranks), str(folder), *words], capture_output=True, text=True
    )
    results = {}
    for task in tasks:
        path = folder / f"{task}-{ranks}.json"
        assert path.exists(), done.stderr[-4000:]
        results[task] = json.loads(path.read_text())
    return results


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a function that gives the results of all tasks of a number of ranks."""

    @functools.cache
    def of(ranks):
        tasks = dict(TASKS[ranks])
        if importlib.util.find_spec("torchtitan") is None:
            tasks.pop("torchtitan", None)
        return start(tmp_path_factory.mktemp("pipelines"), ranks, tasks)

    return of


@pytest.fixture(params=[2, 4])
def trained(request, run):
    return run(request.param)["run"]


def test_families_train_to_the_loss_and_gradients_of_one_process(trained):
    assert list(trained) == FAMILIES
    for family, result in trained.items():
        if family in REFUSED:
            assert not result["runs"] and result["reason"].endswith(REFUSED[family] + " of a sequence") or result[
                "reason"
            ].endswith(REFUSED[family]), family
            continue
        # 64-bit floating point: the sums of gradients over microbatches may be rounded differently.
        assert result["losses"] is not False and result["losses"] < 1e-12, family
        assert result["gradients"] is not False and result["gradients"] < 1e-12, family


def test_the_measured_order_of_ops_is_that_of_the_schedule(trained):
    ran = {family: result["order"] for family, result in trained.items() if family not in REFUSED}
    assert ran and all(ran.values()), ran


def test_traces_are_compared_and_analyzed(trained):
    assert all(r["compared"] == "sluice.comparison/1" for f, r in trained.items() if f not in REFUSED)
    analysis = sluice.analyze(trained["1f1b"]["traces"])
    assert analysis["schema"] == "sluice.analysis/1"
    assert sluice.simulate(analysis.scenario).schedule.num_ranks in (2, 4)


def test_a_weight_that_two_stages_share_is_scaled_once(run):
    for family, result in run(2)["share"].items():
        assert result["shared"] == (family != "1f1b")
        assert not result["shared"] or max(result["errors"]) < 1e-12, family
        assert "microbatches do not divide a batch of" in result["refused"]


def test_replicas_do_not_replace_each_others_traces(run):
    assert run(2)["replicas"]["1f1b"] == ["rank0.json", "replica1/rank0.json"]


PROFILED = ["1f1b", "zb-h1"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    return start(tmp_path_factory.mktemp("profiled"), 2, {"profile": ",".join(PROFILED)})["profile"]


@pytest.mark.quiet
@pytest.mark.parametrize("family", PROFILED)
def test_the_prediction_from_profiled_stages(family, profiled):
    result = profiled[family]
    # Runs in which a process waited for a core, because the machine has other work, are set apart.
    quiet = [step["seconds"] for step in result["steps"] if step["core_wait"] < QUIET]
    if len(quiet) < 3 or result["core_wait"] > QUIET:
        pytest.skip(f"SKIPPED: the machine is not quiet: {result}")
    assert abs(result["predicted_s"] / statistics.median(quiet) - 1) < 0.15, result


def test_torchtitan_reads_the_csv(run):
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("SKIPPED: torchtitan is not installed: tests/pytorch/install.sh installs it")
    for family, result in run(2)["torchtitan"].items():
        assert result["losses"] < 1e-12 and result["gradients"] < 1e-12, family


def test_wrong_processes(tmp_path):
    import torch.distributed as dist

    import sluice.torch

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(sluice.InputError, match="the schedule has 2 ranks, the group 1 processes"):
            sluice.torch.runtime(sluice.schedule("1f1b", pp=2, microbatches=2), {})
        with pytest.raises(sluice.InputError, match=r"expected the modules of stages \[0\], got \[\]"):
            sluice.torch.runtime(sluice.schedule("1f1b", pp=1, microbatches=2), {})
        with pytest.raises(sluice.InputError, match="slices"):
            sluice.torch.runtime(sluice.schedule("seq1f1b", pp=1, microbatches=2, slices=2), {})
    finally:
        dist.destroy_process_group()


def test_check_of_what_the_installed_version_sends():
    import sluice.torch

    interleaved = sluice.schedule("interleaved-1f1b", pp=2, microbatches=4, vpp=2)
    for eager in (False, True):
        verdict = sluice.torch.check(interleaved, eager=eager)
        assert (verdict["verdict"], verdict["cycle"], verdict["swaps"]) == ("ok", [], [])
        assert verdict["check"] == ("communicators: one" if eager else "communicators: pair")
        deferred = sluice.torch.check(interleaved, eager=eager, defer_pp_recv=True)  # pytorch#178815
        assert deferred["verdict"] == "error" and {step["rank"] for step in deferred["cycle"]} == {0, 1}
    # Each rank sends before it receives.
    rows = ["0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1", "1RECV_F0,1F0,1RECV_F1,1F1,1SEND_F0,1SEND_F1"]
    backward = ["2B0,2SEND_B0,2B1,2SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1", "1RECV_B0,1B0,1RECV_B1,1B1,1SEND_B0,1SEND_B1"]
    late = "".join(f"{first},{second}\n" for first, second in zip(rows, backward))
    assert sluice.torch.check(sluice.Schedule.from_csv(late))["verdict"] == "ok"
    early = late.replace("1RECV_F1,1F1,1SEND_F0,1SEND_F1", "1SEND_F0,1RECV_F1,1F1,1SEND_F1")
    early = early.replace("0SEND_F1,2RECV_F0,2F0", "2RECV_F0,2F0,0SEND_F1")
    assert sluice.torch.check(sluice.Schedule.from_csv(early))["verdict"] == "ok"
    hangs = early.replace("2RECV_F0,2F0,0SEND_F1", "0SEND_F1,2RECV_F0,2F0")  # pytorch#172668
    verdict = sluice.torch.check(sluice.Schedule.from_csv(hangs))
    assert [step["item"].split(" ")[0] for step in verdict["cycle"]] == ["0SEND_F1", "1RECV_F1", "1SEND_F0", "2RECV_F0"]
    with pytest.raises(sluice.InputError, match="sends and receives of its own"):
        sluice.torch.check(sluice.Schedule.from_csv(late), defer_pp_recv=True)
    with pytest.raises(sluice.InputError, match="slices"):
        sluice.torch.check(sluice.schedule("seq1f1b", pp=2, microbatches=2, slices=2))
    with pytest.raises(sluice.InputError, match="wait: expected device, stream or host, got 'never'"):
        interleaved.check("one", wait="never")


# The script of tools/gpu_check.sh, on the CPU. It finds out if gradients differ: with a tolerance of -1, they always do.
@pytest.mark.parametrize("tolerance, code", [("1e-6", 0), ("-1", 1)])
def test_script_for_gpus(tmp_path, tolerance, code):
    root = pathlib.Path(__file__).parents[2]
    command = root / "build/release/tools/sluice"
    if not command.exists():
        pytest.skip("SKIPPED: build/release has no sluice")
    results = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, str(root / "benchmarks/kernels/pytorch_pipeline.py"), "--sluice", str(command)]
        + ["--device", "cpu", "--width", "64", "--rows", "16", "--tolerance", tolerance, "--json", str(results)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr[-4000:]
    rows = json.loads(results.read_text())["results"]
    assert [row["schedule"] for row in rows] == ["1f1b", "interleaved-1f1b", "zb-v"]
    assert all(row["order_equal"] and row["recognised"] == row["schedule"] for row in rows)
