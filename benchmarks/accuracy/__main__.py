"""Scores predictions on published measurements: predicts every row of tables and prints the errors of the predictions.

    python benchmarks/accuracy DATA... [--rows] [--json]

DATA is a CSV table or a folder of tables. The kind of a table follows from its columns. Needs the package sluice.
"""

import argparse
import glob
import os
import sys

import nvidia
import torchtitan
import zero_bubble
from calibration import calibrated_text, prior_text
from cards import score_cards
from choices import difference_text, regret_text, runs_of
from coverage import coverage_text
from dualpipe import score_dualpipe_trace
from errors import errors_json, errors_text, residuals_of
from iterations import (
    score_mlperf,
    score_mlperf_experts,
    score_ptdp,
    score_rows,
    score_simumax,
    score_ultrascale,
    score_users,
)
from memory import score_golden_values, score_korthikanti_memory
from mlperf import score_mlperf_llama
from page import score_page
from prefill import score_prefill
from score import DOCUMENT_HEADER, HEADER, document_row, score_json, score_text
from vocabulary import score_vocabulary

import sluice

# Name, columns, and how to score it; a table belongs to the first kind whose columns it has.
KINDS = (
    ("zero-bubble-bubbles", "pp num_microbatches micro_batch t_f_ms t_b_ms t_w_ms t_comm_ms",
     zero_bubble.score_zero_bubble_bubbles),
    ("zero-bubble-throughput", "layers heads hidden seq pp micro_batch num_microbatches schedule derived_iter_ms",
     zero_bubble.score_zero_bubble_throughput),
    ("korthikanti-memory", "model recompute params_and_optimizer_gib activations_gib", score_korthikanti_memory),
    ("vtrain-multi",
     "params_B gpus global_batch micro_batch hidden heads layers seq tp dp pp iter_ms recompute schedule",
     score_rows("vtrain")),
    ("vtrain-single", "gpus global_batch micro_batch hidden heads layers seq tp dp pp iter_ms recompute schedule",
     score_rows("vtrain")),
    ("korthikanti-time",
     "model gpus hidden layers heads seq vocab tp pp interleave dp global_batch micro_batch recompute iter_s",
     score_rows("korthikanti")),
    ("ptdp-weak-scaling", "heads hidden layers tp pp gpus global_batch seq vocab derived_iter_s", score_ptdp),
    ("seq1f1b", "layers heads hidden seq pp tp gpus microbatches schedule tokens_per_s_thousands",
     score_rows("seq1f1b")),
    ("mlperf",
     "benchmark layers hidden heads seq tp pp vp dp global_batch micro_batch num_microbatches median_step_s",
     score_mlperf),
    ("mlperf-experts",
     "model gpus gpu_type tp pp vp cp ep dp mbs gbs layout moe_a2a_overlap_1f1b delay_wgrad recompute precision iter_s",
     score_mlperf_experts),
    ("mlperf-llama",
     "bench layers hidden heads kv_heads ffn vocab seq gpu_type gpus tp pp vp cp dp mbs gbs precision tp_comm_overlap"
     " cuda_graph fp8_attention tp_pp_dp_order step_s", score_mlperf_llama),
    ("dualpipe-trace", "op index stream gpu_busy_us gpu_start_us gpu_end_us", score_dualpipe_trace),
    ("ultrascale",
     "model layers hidden heads kv_heads ffn vocab seq gpus tp pp dp mbs gbs zero status iter_s", score_ultrascale),
    ("megatron-golden-values", "test family gpus gpu_type all_args source mem_max_allocated_bytes",
     score_golden_values),
    ("bridge-cards",
     "card model gpu_type gpus task precision tp pp vp cp ep etp mbs gbs seq dispatcher layout status step_ms config",
     score_cards),
    ("dgxc",
     "model size layers hidden heads kv_heads ffn vocab seq gpus gpu_type tp pp vp cp ep dp mbs gbs precision scaling"
     " iter_s", nvidia.score_nvidia),
    ("megatron-bridge",
     "release task model layers experts gpus gpu_type tp pp vp cp ep dp mbs gbs fsdp precision iter_s",
     nvidia.score_nvidia),
    ("nemo-2024",
     "release model layers hidden gpus gpu_type tp pp vp cp dp mbs gbs precision iter_s", nvidia.score_nvidia),
    ("torchtitan",
     "model layers hidden heads kv_heads ffn vocab seq gpus gpu_type dp_shard tp pp vp cp local_batch gbs recompute"
     " precision compile async_tp tokens_s_gpu peak_mem_GiB", torchtitan.score_torchtitan),
    ("vocabulary-parallelism",
     "method schedule layers hidden heads ffn vocab seq mbs gbs pp tp dp last_stage_layers iter_s peak_mem_MB_model"
     " F_us_by_rank B_us_by_rank S_us_by_rank T_us_by_rank extra5_us_by_rank extra6_us_by_rank", score_vocabulary),
    ("prefill-chunks", "system model ranks chunk_tokens prefix_tokens total_tokens time_ms e2e_s", score_prefill),
    ("simumax-b200", "case model parallel layers microbatches real_ms peak_alloc_mb_by_rank", score_simumax),
)


def files_in(paths):
    """Returns the files, with each folder replaced by its CSV files, sorted."""
    out = []
    for path in paths:
        inside = sorted(glob.glob(os.path.join(glob.escape(path), "*.csv"))) if os.path.isdir(path) else [path]
        if not inside:
            raise sluice.InputError(f"{path}: expected at least one .csv file in this folder")
        out += inside
    return out


def users_score(path, ignored):
    """Returns the name and the score of a user's table, "runs.csv=scenario.json"."""
    file, _, scenario = path.rpartition("=")
    table = sluice.Table(file)
    table.drop(*ignored)
    with open(scenario, encoding="utf-8") as text:
        base = sluice.Scenario.from_json(text.read(), os.path.dirname(scenario), scenario)
    score = score_users(table, base)
    if score.skipped and not score.comparisons and not score.verdicts:
        raise sluice.InputError(f"no row can be predicted; the first: {score.skipped[0].reason}")
    return os.path.splitext(os.path.basename(file))[0], score


def write_rows(tables, folder):
    """Writes the runs of NVIDIA's and torchtitan's tables into a folder, by GPU and precision."""
    texts = {}
    for table in tables:
        module = torchtitan if "dp_shard" in table.columns else nvidia
        for group, scenario, place, seconds in module.rows_by_group(table):
            texts.setdefault(group, [DOCUMENT_HEADER]).append(document_row(scenario, place, seconds))
    os.makedirs(folder, exist_ok=True)
    for group, lines in texts.items():
        with open(f"{folder}/{group.replace(' ', '-').replace(',', '')}.csv", "w", encoding="utf-8") as file:
            file.writelines(lines)


def run(options):
    own = [path for path in options.data if path.endswith(".json") and "=" in path]
    scores = [users_score(path, options.ignore_columns) for path in own]
    unknown, writable, agreements, covered = [], [], "", ""
    for path in files_in([path for path in options.data if path not in own]):
        table = sluice.Table(path)
        kind = next((each for each in KINDS if set(each[1].split()) <= set(table.columns)), None)
        if kind is None:
            unknown.append(os.path.basename(path))
            continue
        name, _, score = kind
        scores.append((name, score(table)))
        if options.coverage and "model" in table.columns:
            covered += coverage_text(name, table, scores[-1][1])
        if name == "torchtitan" or score is nvidia.score_nvidia:
            writable.append(table)
        if options.plans and score is nvidia.score_nvidia:
            agreements += nvidia.agreement_text(table)
    if not scores:
        raise sluice.InputError(
            "expected at least one table with the columns of a known kind (benchmarks/accuracy/__main__.py), or a table"
            " of your own with its scenario, TABLE.csv=SCENARIO.json"
        )
    if options.write_rows:
        write_rows(writable, options.write_rows)
    if options.html:
        with open(options.html, "w", encoding="utf-8") as file:
            file.write(score_page(scores))
    if options.write_errors:
        with open(options.write_errors, "w", encoding="utf-8") as file:
            file.write(errors_json(residuals_of(scores)))
        return errors_text(residuals_of(scores))
    if options.coverage:
        return covered
    if options.json:
        return score_json(scores)
    out = HEADER
    for name, score in scores:
        runs = runs_of(score)
        out += score_text(name, score, options.rows) + difference_text(runs) + regret_text(runs)
        if options.calibrated:
            out += calibrated_text(score)
    if options.calibrated:
        # The cards' runs on real data have errors of kinds that tuned runs do not have.
        out += prior_text([score for name, score in scores if name != "bridge-cards"])
    return out + agreements + (f"not scored: {', '.join(unknown)}\n" if unknown else "")


def main():
    parser = argparse.ArgumentParser("accuracy", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("data", nargs="+", help="Published CSV tables, or folders of them; TABLE.csv=SCENARIO.json: a table of your"
        " own iterations (docs/formats.md), with the scenario of what its rows do not contain")
    add("--rows", action="store_true", help="Also print every row")
    add("--json", action="store_true", help="Print one JSON document (sluice.accuracy/1) with every row")
    add("--coverage", action="store_true", help="Print instead which models and rows of the tables are predicted, and"
        " a line with the reason for each row that is not")
    add("--plans", action="store_true",
        help="Also compare the configurations of NVIDIA's tables with the plans of their GPUs")
    add("--calibrated", action="store_true", help="Also calibrate on pairs of rows of each model, GPU and"
        " precision with at least three rows, print the mean error of its other rows, and estimate the prior of"
        " calibration")
    add("--ignore-columns", type=lambda text: text.split(","), default=[],
        help="Columns of tables of your own to ignore, as a,b,c")
    add("--html", metavar="FILE", help="Write predicted against measured values to this HTML page")
    add("--write-errors", metavar="FILE", help="Write the classes of measured runs and the errors of their predictions"
        " to this file, model/cluster/catalogue/errors/iteration-time.json, and print them instead")
    add("--write-rows", metavar="FOLDER", help="Write the runs of NVIDIA's and torchtitan's tables into this folder, by"
        " GPU and precision, for 'sluice calibrate'")
    try:
        sys.stdout.write(run(parser.parse_args()))
    except (sluice.InputError, sluice.ScheduleError, OSError) as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 2 if isinstance(error, sluice.InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
