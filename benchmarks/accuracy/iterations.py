"""Tables of measured iteration times."""

import json
import re

from score import Comparison, Run, Score, Skipped, Verdict, base_of, scored

import sluice

TIME = "iteration time"


def timed(run, result, seconds, group=TIME, counted=True):
    record = Comparison(group, run.place, run.setting, run.seconds, seconds, "s").of(result)
    return record.counted(result) if counted else record


def simulate(scenario, **keys):
    return sluice.simulate(scenario, memory=False, **keys)


def score_rows(base):
    """Returns the score of a table whose cells override `base`: vTrain's, and table 5 of Korthikanti et al. 2022."""

    def score_table(table):
        def predict(row):
            run = table.run(row, base_of(base))
            result = simulate(run.scenario)
            score_of_row = [] if run.out_of_memory else [timed(run, result, result.makespan_s)]
            if base == "seq1f1b":  # Sun et al. 2024 (Seq1F1B), tables 2 and 3, with out of memory
                score_of_row.append(Verdict(run.place, run.setting, not run.out_of_memory, bool(result.fits)))
            return score_of_row

        return scored(table, predict)

    return score_table


def score_ptdp(table):
    """Narayanan et al. 2021 (SC'21), table 1: the fastest of common sizes of microbatches and chunks, not published."""
    def predict(row):
        best = reason = None
        for micro_batch in (1, 2, 4, 8):
            for chunks in (1, 2, 3, 4):
                base = base_of("ptdp")
                base.setdefault("batch", {})["micro_batch"] = micro_batch
                if chunks > 1:
                    base.setdefault("parallelism", {})["vpp"] = chunks
                try:
                    run = table.run(row, base)
                    if chunks > 1 and run.scenario.to_dict()["parallelism"]["pp"] == 1:
                        continue
                    result = simulate(run.scenario)
                except sluice.InputError as error:
                    reason = error  # sizes that do not divide
                    continue
                if result.fits is not False and (best is None or result.makespan_s < best[1].makespan_s):
                    setting = f"{run.setting}; fastest: micro_batch {micro_batch}, vpp {chunks}"
                    best = (run._replace(setting=setting), result)
        if best is None:
            raise reason
        return timed(*best, best[1].makespan_s)

    return scored(table, predict)


def score_mlperf(table):
    """MLPerf training, GPT-3: also after calibration on two rows of each model, with fewest and most microbatches.

    Time is linear in the number of microbatches. A scale and a fixed time predict the other rows.
    """
    score = Score()

    def predict(row):
        name = table.text(row, "benchmark")
        run = table.run(row, base_of("mlperf-llama" if "llama" in name else "mlperf"))
        return name, run, simulate(run.scenario)

    models = {}
    for name, run, result in filter(None, score.rows(table, predict)):
        score.add(timed(run, result, result.makespan_s, "iteration time, uncalibrated"))
        key = (result.resolved["microbatches"], run.seconds, len(score.comparisons))
        models.setdefault(name, []).append((*key, run, result))
    for name, rows in sorted(models.items()):
        rows.sort(key=lambda row: row[:3])

        def middle_of(microbatches, rows=rows):
            """Returns the median one of several rows with the same number of microbatches."""
            same = [row for row in rows if row[0] == microbatches]
            return same[(len(same) - 1) // 2]

        least, most = middle_of(rows[0][0]), middle_of(rows[-1][0])
        if least is most:
            score.add(Skipped(table.source, f"{name}: calibration needs rows with different numbers of microbatches"))
            continue
        correction = sluice.fit_correction([(row[4].makespan_s, row[1]) for row in (least, most)])
        for row in rows:
            if row is not least and row is not most:
                seconds = correction.at(row[4].makespan_s)
                score.add(timed(row[3], row[4], seconds, "iteration time, calibrated on two rows", counted=False))
                score.comparisons[-1].model = ""  # is not calibrated again
    return score


def score_mlperf_experts(table):
    """NVIDIA's DeepSeek-V3 submissions to MLPerf Training v6.0, also without overlap and calibrated on other rows."""
    score = Score()

    def document_of(row):
        out = base_of("mlperf-experts")
        parallelism = out["parallelism"]
        for key in ("tp", "pp", "cp", "ep", "dp"):
            parallelism[key] = table.integer(row, key, 1, 1 << 20)
        parallelism["sequence_parallel"] = parallelism["tp"] > 1
        parallelism["pipeline_layout"] = table.text(row, "layout")
        parallelism["precision"] = table.text(row, "precision")
        if table.text(row, "recompute") != "none":  # a question mark is a guess of the table
            parallelism["recompute"] = "selective"
            parallelism["recompute_modules"] = [table.text(row, "recompute").partition("?")[0]]
        gpu = table.text(row, "gpu_type")
        if gpu not in ("GB200", "GB300"):
            table.fail(row, "gpu_type", "expected GB200 or GB300")
        # Of an NVL72 domain 64 GPUs are used, so that groups of ranks lie within it.
        out["cluster"] = {"name": gpu.lower() + "-nvl72", "gpus_per_node": 64}
        if not table.text(row, "model").startswith("DeepSeek-V3"):
            table.fail(row, "model", "expected DeepSeek-V3")
        combined = table.text(row, "moe_a2a_overlap_1f1b") == "True"
        out["schedule"] = {"name": "combined-1f1b" if combined else "interleaved-1f1b"}
        if table.text(row, "delay_wgrad") != "True":
            parallelism["weave"] = "whole-backward"
        out["batch"] = {
            "micro_batch": table.integer(row, "mbs", 1, 1 << 20),
            "global_batch": table.integer(row, "gbs"),
            "sequence_length": table.integer(row, "seq"),
        }
        return out

    def predict(row):
        text = {name: table.text(row, name) for name in ("gpu_type", "gpus", "tp", "pp", "ep", "mbs", "gbs")}
        setting = "{gpu_type} {gpus} GPUs, tp {tp} pp {pp} ep {ep} mbs {mbs} gbs {gbs}".format(**text)
        scenario = scenario_of(document_of(row), table.place(row))
        run = sluice.MeasuredRun(table.place(row), setting, scenario, table.number(row, "iter_s", 1e-6, 1e6), False)
        # What the overlap saves, in prediction: the error is that of a run that hides nothing.
        apart = simulate(scenario, **{"parallelism/joint_overlap": "none"})
        return run, simulate(scenario), apart.iteration_s, text["gpu_type"] == "GB200"

    rows = [row for row in score.rows(table, predict) if row]
    for run, result, apart_s, _ in rows:
        score.add(
            Verdict(run.place, run.setting, True, result.fits),
            timed(run, result, result.iteration_s, "iteration time, uncalibrated"),
            timed(run, result, apart_s, "iteration time without overlap", counted=False),
        )
    for one in rows:
        run, result = one[:2]
        others = [(row[1].iteration_s, row[0].seconds) for row in rows if row[3] and row is not one]
        if others:
            # These runs evaluate after every step. Before that, Megatron-LM's training loop collects Python's garbage
            # and waits for all ranks, which takes a time of its own; the shortest iteration shows it best.
            fixed = sluice.fit_correction([min(others, key=lambda pair: pair[1])], "fixed")
            group = "iteration time, with the fixed time of one GB200 row"
            score.add(timed(run, result, fixed.at(result.iteration_s), group, counted=False))
        if len(others) > 1:
            seconds = sluice.fit_correction(others).at(result.iteration_s)
            group = "iteration time, calibrated on all other GB200 rows"
            score.add(timed(run, result, seconds, group, counted=False))
    for comparison in score.comparisons:
        if comparison.group != "iteration time, uncalibrated":
            comparison.model = ""  # is not calibrated again
    return score


def scenario_of(document, place):
    return sluice.Scenario.from_json(json.dumps(document), source=place)


def score_users(table, base):
    """A user's table of measured iterations, with a column peak_memory_gib if it has one."""
    table.check_columns()
    def predict(row):
        run = table.run(row, base)
        result = simulate(run.scenario)
        records = []
        if result.fits is not None:
            records.append(Verdict(run.place, run.setting, not run.out_of_memory, result.fits))
        if run.out_of_memory:
            return records
        corrected = "calibration" in run.scenario.to_dict()
        records.append(timed(run, result, result.iteration_s if corrected else result.makespan_s))
        if "peak_memory_gib" in table.columns and table.text(row, "peak_memory_gib"):
            measured = table.number(row, "peak_memory_gib", 1e-6, 1e6)
            peak = result.peak_memory_bytes.max() / 2**30
            records.append(Comparison("peak memory", run.place, run.setting, measured, peak, "GiB").of(result))
        return records

    return scored(table, predict)


NANOTRON_MARGIN = 0.2  # layers keep more than Megatron-LM's: with sequence parallelism the gathered inputs of GEMMs


def nanotron_layers(table, row, stages):
    """Returns nanotron's layers per stage (PipelineEngine and get_block_compute_costs).

    Blocks go to a rank until their weights exceed its part of all weights of layers and head.
    """
    hidden, heads, layers = (float(table.text(row, name)) for name in ("hidden", "heads", "layers"))
    layer = hidden * (4.0 * heads * (hidden // heads) + 3.0 * float(table.text(row, "ffn")))
    total = layers * layer + float(table.text(row, "vocab")) * hidden
    out = [0] * stages
    stage = 0
    for done in range(1, int(layers) + 1):
        out[stage] += 1
        if done * layer > total * (stage + 1) / stages:
            stage += 1
    return out


def score_ultrascale(table):
    """The Ultra-Scale Playbook's runs. Those slower than twice the best of their set were slowed by the cluster."""
    score = Score()

    def predict(row):
        base = base_of("nanotron")
        base["parallelism"]["distributed_optimizer"] = table.integer(row, "zero", 0, 1) == 1
        read = table.run(row, base, timed=False)
        stages = read.scenario.to_dict()["parallelism"]["pp"]
        keys = {"parallelism/stage_layers": nanotron_layers(table, row, stages)} if stages > 1 else {}
        result = simulate(read.scenario, **keys)
        text = {name: table.text(row, name) for name in ("model", "gpus", "gbs", "seq", "tp", "mbs")}
        run = Run("{model}, {gpus} GPUs, batch {gbs}, sequence {seq}".format(**text), read.place, read.setting,
                  "tp {tp}, mbs {mbs}".format(**text), 0, result.makespan_s, result.fits is not False)
        gpu = result.resolved["gpu"]
        run.tight = result.needed_bytes > gpu["memory_bytes"] * (1 - NANOTRON_MARGIN)
        if table.text(row, "status") == "ok":
            run.measured_s = table.number(row, "iter_s", 1e-6, 1e6)
            measured = table.number(row, "peak_mem_GB", 1e-3, 1e6)
            predicted = (result.needed_bytes - gpu["reserved_bytes"]) / 1e9
            time = Comparison("time of runs within twice the best", run.place, run.setting, run.measured_s,
                              run.predicted_s, "s").counted(result)
            return run, time, [Comparison("peak memory", run.place, run.setting, measured, predicted, "GB")]
        return run, None, []

    best, times = {}, []
    for run, time, memory in filter(None, score.rows(table, predict)):
        score.add(run, *memory)
        if time:
            best[run.set] = min(best.get(run.set, run.measured_s), run.measured_s)
            times.append((run, time))
    for run, time in times:
        score.add(Verdict(run.place, run.setting, True, run.fits))
        if run.measured_s <= 2 * best[run.set]:
            score.add(time)
    return score


def score_simumax(table):
    """MooreThreads/SimuMax docs/b200, on 8 GPUs: time, and memory by rank."""
    models = base_of("simumax-models")

    def number_after(text, word, default):
        found = re.search(word + r"(\d+)", text)
        return int(found[1]) if found else default

    def predict(row):
        document = base_of("simumax")
        if table.text(row, "model") not in models:
            table.fail(row, "model", "expected a model of simumax-models.json")
        layers = table.integer(row, "layers", 1, 1000)
        model = document["model"] = {
            **models[table.text(row, "model")], "num_layers": layers, "swiglu": True, "disable_bias_linear": True,
            "untie_embeddings_and_output_weights": True, "position_embedding_type": "rope", "normalization": "RMSNorm",
            "hidden_dropout": 0, "attention_dropout": 0,
        }
        if "num_experts" in model:
            model["moe_layer_freq"] = [0] + [1] * (layers - 1)  # as in the scripts of the measurements
        parallel = table.text(row, "parallel")
        sizes = {key: number_after(parallel, key, 1) for key in ("tp", "cp", "pp", "ep")}
        product = sizes["tp"] * sizes["cp"] * sizes["pp"]
        if product < 1 or 8 % product:
            table.fail(row, "parallel", "expected sizes whose product divides 8")
        document["parallelism"].update(sizes, dp=8 // product)
        case = table.text(row, "case")
        document["batch"]["microbatches"] = table.integer(row, "microbatches", 1, 100000)
        document["batch"]["sequence_length"] = number_after(case, "seq", 4096)
        result = simulate(scenario_of(document, table.place(row)))
        kind = ", experts" if "num_experts" in model else ", cp" if sizes["cp"] > 1 else ", dense"
        measured = table.number(row, "real_ms", 1e-3, 1e9)
        time = Comparison(TIME + kind, table.place(row), case, measured, 1e3 * result.makespan_s, "ms")
        records = [time.counted(result)]
        peaks = dict(re.findall(r"(\d+):([\d.]+)", table.text(row, "peak_alloc_mb_by_rank")))  # by world rank
        for rank, peak in enumerate(result.peak_memory_bytes):
            measured = peaks.get(str(rank * 8 // sizes["pp"]))
            if measured is not None:
                setting = f"{case} rank {rank}"
                group, predicted = "memory by rank" + kind, peak / 2**20
                records.append(Comparison(group, table.place(row), setting, float(measured), predicted, "MiB"))
        return [record.of(result) for record in records]

    return scored(table, predict)
