"""Runs of torchtitan."""

from iterations import scenario_of, simulate
from score import Comparison, Verdict, base_of, scored

import sluice

MODEL = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
         "num_query_groups": "kv_heads", "ffn_hidden_size": "ffn", "vocab_size": "vocab"}
SETTING = ("seq", "dp_shard", "tp", "pp", "vp", "cp", "local_batch", "recompute", "precision", "compile", "async_tp")


def document_of(table, row):
    """Returns the scenario of a row.

    A pipeline has as many microbatches as ranks until 2024 and as stages from 2025 on (torchtitan's pull request 781),
    and counts embedding and head as layers (its default in 2024).
    """

    def number(column):
        return table.integer(row, column)

    out = base_of("torchtitan")
    compiled = table.text(row, "compile") == "True"
    parallelism = out["parallelism"]
    parallelism.update(tp=number("tp"), pp=number("pp"), cp=number("cp"), dp=number("dp_shard"), vpp=number("vp"))
    parallelism["sequence_parallel"] = number("tp") > 1
    parallelism["tp_comm_overlap"] = table.text(row, "async_tp") == "True"
    # From 2025 on, torch.compile includes the loss.
    if compiled and "source" in table.columns and "2025" in table.text(row, "source"):
        parallelism.update(fused_cross_entropy=True, cross_entropy_fusion_impl="te")
    recompute = table.text(row, "recompute")
    if recompute in ("selective", "per-op selective"):
        # Every second layer, as its option 2 and, nearly, its option op do.
        parallelism.update(recompute="full", recompute_layers=table.integer(row, "layers", 2, 1000) // 2)
    elif recompute == "full":
        parallelism["recompute"] = "full"
    elif recompute != "none":
        table.fail(row, "recompute", "expected a known word")
    precision = table.text(row, "precision")
    rowwise = precision == "float8 rowwise"
    if precision.startswith("float8"):
        # One scale per tensor is gathered in 8 bits, one per row in 16 (torchao's enable_fsdp_float8_all_gather).
        parallelism.update(precision="fp8-current", fp8_param_gather=not rowwise)
    elif precision != "bf16":
        table.fail(row, "precision", "expected bf16 or float8")
    stages = number("pp") * number("vp")
    if stages > 1:
        layers = [(number("layers") + 2) // stages] * stages
        layers[0] -= 1
        layers[-1] -= 1
        parallelism["stage_layers"] = layers
    out["model"].update({key: number(column) for key, column in MODEL.items()})
    microbatches = number("pp") if "source" in table.columns and "_2024" in table.text(row, "source") else stages
    out["batch"] = {
        "micro_batch": number("local_batch") // microbatches,
        "global_batch": number("gbs"),
        "sequence_length": number("seq"),
    }
    out["schedule"] = {"name": "interleaved-1f1b" if number("vp") > 1 else "1f1b"}
    gpu = table.text(row, "gpu_type")
    if gpu != "H200" and not gpu.startswith("H100-96GB"):
        table.fail(row, "gpu_type", "expected H100-96GB or H200")
    out["cluster"] = "dgx-h200" if gpu == "H200" else "h100-96gb"
    out["software"] = "torchtitan-rowwise" if rowwise else "torchtitan" if compiled else "torchtitan-eager"
    return out


def seconds_of(table, row):
    tokens = table.integer(row, "gbs") * table.integer(row, "seq")
    return tokens / table.integer(row, "gpus") / table.number(row, "tokens_s_gpu", 1e-6, 1e9)


def merged_logit_bytes(facts):
    """Returns the bytes of a pipeline's merged logits. The table has reserved memory.

    At the end of a batch, PyTorch's schedules copy the kept logits of all microbatches into one tensor
    (torch/distributed/pipelining/schedules.py, _merge_outputs); no block that is free by then is as large, so that it
    adds to what is reserved, whatever has been freed.
    """
    if facts["pp"] == 1:
        return 0
    rows = facts["microbatches"] * facts["micro_batch"] * facts["sequence_length"] // facts["cp"]
    return 2 * rows * (facts["model"]["padded_vocab"] // facts["tp"])


def score_torchtitan(table):
    def predict(row):
        place = table.place(row)
        cells = ", ".join(f"{column} {table.text(row, column)}" for column in SETTING)
        setting = f"{table.text(row, 'model')}, {table.text(row, 'gpus')} GPUs, {cells}"
        result = simulate(scenario_of(document_of(table, row), place))
        seconds = seconds_of(table, row)
        records = [
            Verdict(place, setting, True, result.fits),
            Comparison("iteration time", place, setting, seconds, result.makespan_s, "s").of(result).counted(result),
        ]
        if table.text(row, "peak_mem_GiB"):
            facts = result.resolved
            tensors = result.needed_bytes - facts["gpu"]["reserved_bytes"] + merged_logit_bytes(facts)
            measured = table.number(row, "peak_mem_GiB", 1e-3, 1e6)
            records.append(Comparison("peak memory", place, setting, measured, tensors / 2**30, "GiB"))
        return records

    return scored(table, predict)


def rows_by_group(table):
    """Yields the group, the scenario, the place and the seconds of each row, for `sluice calibrate`."""
    for row in range(len(table)):
        try:
            document = document_of(table, row)
            precision = document["parallelism"].get("precision", "bf16")
            context = " context" if document["parallelism"]["cp"] > 1 else ""
            group = f"{document['software']} {document['cluster']} {precision}{context}"
            yield group, scenario_of(document, table.place(row)), table.place(row), seconds_of(table, row)
        except sluice.InputError:
            continue  # reported with the scores
