"""Llama 3.1 in MLPerf Training v5.0 and v5.1, with settings from the launch scripts of the submissions."""

import recipes
from iterations import scenario_of, simulate
from nvidia import BRIDGE
from score import Comparison, Verdict, scored

SIZES = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
         "num_query_groups": "kv_heads", "ffn_hidden_size": "ffn", "vocab_size": "vocab"}
# Of an NVL72 domain 64 GPUs are used, so that groups of ranks lie within it.
CLUSTERS = {"H100": "dgx-h100", "B200": "dgx-b200", "B300": "dgx-b300",
            **{gpu: {"name": f"{gpu.lower()}-nvl72", "gpus_per_node": 64} for gpu in ("GB200", "GB300")}}


def chosen(table, row, column):
    return table.text(row, column) == "True"


def document_of(table, row):
    """Returns the scenario of a submission: the common settings of NVIDIA's recipes, and what its script sets."""
    out = recipes.merge({}, BRIDGE["scenario"])
    sizes = {key: table.integer(row, column) for key, column in SIZES.items()}
    out["model"] = {**BRIDGE["model_defaults"], **BRIDGE["models"]["Llama-3.1"], **sizes}
    parallelism = out["parallelism"]
    for key in ("tp", "pp", "cp", "dp"):
        parallelism[key] = table.integer(row, key)
    chunks = table.integer(row, "vp")
    stages = parallelism["pp"] * chunks
    if stages > 1:  # embedding and head count as a layer each
        counts = parallelism["stage_layers"] = [(sizes["num_layers"] + 2) // stages] * stages
        counts[0] -= 1
        counts[-1] -= 1
    if chunks > 1:
        parallelism["vpp"] = chunks
    out["schedule"] = {"name": "interleaved-1f1b" if chunks > 1 else "1f1b"}
    parallelism["precision"] = table.text(row, "precision")
    parallelism["sequence_parallel"] = parallelism["tp"] > 1
    parallelism["tp_comm_overlap"] = parallelism["tp"] > 1 and chosen(table, row, "tp_comm_overlap")
    parallelism["cuda_graph_impl"] = table.text(row, "cuda_graph")
    parallelism["fp8_dot_product_attention"] = chosen(table, row, "fp8_attention")
    parallelism["pipeline_before_data"] = chosen(table, row, "tp_pp_dp_order")
    gpu = table.text(row, "gpu_type")
    if gpu not in CLUSTERS:
        table.fail(row, "gpu_type", "expected a GPU type of mlperf.py")
    out["cluster"] = CLUSTERS[gpu]
    out["batch"] = {"micro_batch": table.integer(row, "mbs"), "global_batch": table.integer(row, "gbs"),
                    "sequence_length": table.integer(row, "seq")}
    return out


def score_mlperf_llama(table):
    def predict(row):
        place = table.place(row)
        text = {name: table.text(row, name) for name in ("bench", "gpus", "gpu_type", "precision", "tp", "pp", "cp")}
        setting = "{bench}, {gpus} {gpu_type}, {precision}, tp {tp}, pp {pp}, cp {cp}".format(**text)
        setting += f", mbs {table.text(row, 'mbs')}, gbs {table.text(row, 'gbs')}"
        result = simulate(scenario_of(document_of(table, row), place))
        time = Comparison(text["bench"], place, setting, table.number(row, "step_s", 1e-6, 1e6), result.makespan_s, "s")
        return [Verdict(place, setting, True, bool(result.fits)), time.of(result).counted(result)]

    return scored(table, predict)
