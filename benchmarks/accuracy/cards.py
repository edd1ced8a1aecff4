"""Runs of Megatron-Bridge's model verification cards and performance skills.

Groups are of one task. Only `pretrain_performance` and `pretrain_weak_scaling` are tuned runs; others read real data,
and save or load checkpoints, so that their times are upper bounds.
"""

import re

import recipes
from iterations import scenario_of, simulate
from nvidia import BRIDGE, with_least_recomputation
from score import Comparison, Verdict, scored

import sluice

PRECISIONS = {"fp8_mx": "mxfp8", "fp8_cs": "fp8-current", "fp8-mx": "mxfp8", "": "bf16"}
MODULES = {"up_proj": "mla_up_proj"}
RAN = ("verified", "unverified", "completed", "success", "measured", "perf_regression", "passed",
       "passed_mem_borderline_perf", "severe_perf_regression", "approximate figures")
TUNED = ("pretrain_performance", "pretrain_weak_scaling")
OUT_OF_MEMORY = ("OOM", "oom", "OOM_on_rank0")


def words_of(text):
    """Returns the words of a list: "['moe', 'mlp']", "moe,mlp" or "moe+mlp"."""
    return re.findall(r"\w+", text)


def chosen(table, row, column):
    return table.text(row, column).lower() in ("true", "yes")


def unpublished(table, row):
    """Raises InputError for runs whose configuration is not published, or that cannot be simulated."""
    for column in ("gpus", "tp", "pp", "gbs"):
        if not table.text(row, column):
            raise sluice.InputError(f"{table.place(row)}: {column} is not published")
    if table.text(row, "status") not in RAN + OUT_OF_MEMORY:
        raise sluice.InputError(f"{table.place(row)}: {table.text(row, 'status')}: the configuration does not run")
    if table.text(row, "offload").startswith("activation_offload"):
        raise sluice.InputError(f"{table.place(row)}: offload of activations is not modeled")
    if table.text(row, "model") not in BRIDGE["cards"]:
        table.fail(row, "model", "expected a card of megatron-bridge.json")


def graphs_of(table, row):
    implementation = table.text(row, "cuda_graph").replace("yes", "transformer_engine")
    if implementation in ("", "none"):
        return {}
    # Mixers of all kinds are one module here.
    modules = [word for word in words_of(table.text(row, "cuda_graph_modules")) if word not in ("mamba", "full")]
    return {"cuda_graph_impl": implementation, **({"cuda_graph_modules": modules} if modules else {})}


def recomputation_of(table, row):
    kind, modules = table.text(row, "recompute"), words_of(table.text(row, "recompute_modules"))
    if kind == "full" or modules == ["full"]:
        return {"recompute": "full"}
    if kind == "none" or not modules:
        return {}
    if "moe" in modules and "moe_router" in words_of(table.text(row, "cuda_graph_modules")):
        return {}  # Megatron-LM refuses it: a recipe's graphs without the recomputation of the recipe it starts from
    if table.text(row, "model").startswith("nvidia/NVIDIA-Nemotron-3"):  # which have no dense layers
        modules = [word for word in modules if word != "mlp"]
    return {"recompute": "selective", "recompute_modules": [MODULES.get(word, word) for word in modules]}


def offload_of(table, row):
    found = re.match(r"optimizer_offload_(\d+)pct(_overlap)?", table.text(row, "offload"))
    if not found:
        return {}
    return {"optimizer_cpu_offload": True, "optimizer_offload_fraction": int(found[1]) / 100,
            "overlap_cpu_optimizer_d2h_h2d": bool(found[2])}


def sizes_of(table, row):
    sizes = {key: table.integer(row, key) if table.text(row, key) else 1 for key in ("tp", "pp", "cp", "ep", "etp")}
    sizes["dp"] = table.integer(row, "gpus") // (sizes["tp"] * sizes["pp"] * sizes["cp"])
    if table.text(row, "vp") not in ("", "1"):
        sizes["vpp"] = table.integer(row, "vp")
    return sizes


def parallelism_of(table, row, experts):
    out = sizes_of(table, row)
    precision = table.text(row, "precision")
    out["precision"] = PRECISIONS.get(precision, precision)
    out["sequence_parallel"] = out["tp"] > 1
    out["tp_comm_overlap"] = out["tp"] > 1 and chosen(table, row, "tp_comm_overlap")
    for key in ("overlap_grad_reduce", "overlap_param_gather"):
        out[key] = chosen(table, row, key)
    out["overlap_param_gather"] &= out["overlap_grad_reduce"]
    out["gradient_bytes"] = 4 if "grad_reduce_in_fp32=True" in table.text(row, "config") else 2
    if chosen(table, row, "fsdp"):
        out["zero"] = 3
    config = table.text(row, "config").split(";")
    if "mixed_precision.fp8_dot_product_attention=True" in config:
        out["fp8_dot_product_attention"] = True
    # Transformer Engine fuses experts of some sizes only; it runs others as if it had not been asked.
    if "model.use_transformer_engine_op_fuser=True" in config and table.text(row, "model") in BRIDGE["fused_experts"]:
        out["fused_grouped_mlp"] = True
    backend = re.search(r"moe_flex_dispatcher_backend=(\w+)", table.text(row, "config"))
    dispatcher = table.text(row, "dispatcher").lower() or (backend[1] if backend and backend[1] != "None" else "")
    if experts and dispatcher:
        out["moe_token_dispatcher"] = dispatcher
    multiprocessors = re.search(rf"moe_(?:flex_dispatcher|{dispatcher})_num_sms=(\d+)", table.text(row, "config"))
    if experts and multiprocessors:
        out["moe_communication_sms"] = int(multiprocessors[1])
    if chosen(table, row, "ep_overlap") and not chosen(table, row, "delay_wgrad"):
        out["weave"] = "whole-backward"
    layout = table.text(row, "layout")
    layout = BRIDGE["layouts"].get(layout, layout)
    if layout and out["pp"] > 1:
        out["pipeline_layout"] = layout
    return {**out, **graphs_of(table, row), **recomputation_of(table, row), **offload_of(table, row)}


def document_of(table, row):
    """Returns the scenario of a run: the recipes' common settings, and what the card has in their place."""
    unpublished(table, row)
    experts = table.text(row, "ep") not in ("", "1")
    gpu, model = table.text(row, "gpu_type"), BRIDGE["cards"][table.text(row, "model")]
    own = parallelism_of(table, row, experts)
    # The library fills in the layout of DeepSeek-V3 by the number of stages.
    laid_out = model == "deepseek-v3" and own["pp"] > 1 and "no MTP" not in table.text(row, "model")
    facts = {"model": model, "gpu": gpu, "release": "", "experts": "", "layers": "61" if laid_out else "",
             "stages": str(own["pp"] * own.get("vpp", 1)), "fsdp": "",
             "task": "LoRA" if re.search("peft|lora", table.text(row, "task")) else "", "precision": ""}
    out = recipes.scenario(BRIDGE, facts, model)
    recipes.merge(out["parallelism"], own)
    out["parallelism"]["fp8_param_gather"] = out["parallelism"]["precision"] in ("fp8-current", "mxfp8")
    combined = experts and chosen(table, row, "ep_overlap")
    out["schedule"] = {"name": "combined-1f1b" if combined else
                       "interleaved-1f1b" if "vpp" in out["parallelism"] else "1f1b"}
    if table.text(row, "mtp"):
        out["mtp_num_layers"] = table.integer(row, "mtp", 0, 1024)
    elif "w/ MTP" in table.text(row, "model"):
        out["mtp_num_layers"] = 1
    out["batch"] = {
        "micro_batch": table.integer(row, "mbs") if table.text(row, "mbs") else 1,
        "global_batch": table.integer(row, "gbs"),
        "sequence_length": table.integer(row, "seq") if table.text(row, "seq") else 4096,
    }
    return out


MOST_FLOPS = 1.75  # of a card's run over those of its configuration: LoRA's, which are counted differently, have 1.5


def run_of(table, row):
    """Returns the scenario of a run and its prediction.

    A card's TFLOP/s are printed by the run itself. Where they show several times the FLOPs of its configuration, the run
    had a sequence length that is longer by that factor: the recipe's, and not that of the configuration it starts from.
    """
    document, place = document_of(table, row), table.place(row)
    scenario = scenario_of(document, place)
    result = simulate(scenario)
    if "tflops_gpu" in table.columns and table.text(row, "tflops_gpu") and table.text(row, "step_ms"):
        tera = table.number(row, "tflops_gpu", 1e-3, 1e6) * table.number(row, "step_ms", 1e-3, 1e9) / 1e3
        times = tera / (result.model_tflops_per_device * result.makespan_s)
        if times > MOST_FLOPS:
            document["batch"]["sequence_length"] *= round(times)
            scenario = scenario_of(document, place)
            result = simulate(scenario)
    return scenario, result


def score_cards(table):
    def predict(row):
        place = table.place(row)
        scenario, result = run_of(table, row)
        text = {name: table.text(row, name) for name in ("model", "gpus", "gpu_type", "task", "precision")}
        setting = "{model}, {gpus} {gpu_type}, {precision}".format(**text)
        ran = table.text(row, "status") in RAN
        fits = result.fits if not ran else with_least_recomputation(scenario, result).fits
        records = [Verdict(place, setting, ran, bool(fits))]
        if table.text(row, "step_ms"):
            seconds = table.number(row, "step_ms", 1e-3, 1e9) / 1e3
            record = Comparison(text["task"], place, setting, seconds, result.makespan_s, "s").of(result)
            records.append(record.counted(result) if text["task"] in TUNED else record)
        return records

    return scored(table, predict)
