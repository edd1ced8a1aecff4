"""Runs of Vocabulary Parallelism (Yeung et al. 2024, arXiv:2411.05288) with the measured passes of each rank."""

from iterations import scenario_of, simulate
from score import Comparison, Skipped, scored

import sluice

FAMILIES = {"baseline": "1f1b", "redis": "1f1b", "vocab-1": "1f1b-vocab-1", "vocab-2": "1f1b-vocab-2",
            "interlaced": "interlaced"}
PASSES = ("F", "B", "S", "T", "extra5", "extra6")
# What the runs of the paper have: Megatron-LM, 16 bits, attention in one kernel, no recomputation.
MODEL = {"untie_embeddings_and_output_weights": True, "hidden_dropout": 0, "attention_dropout": 0}


def family_of(table, row):
    method = table.text(row, "method")
    if method not in FAMILIES:
        table.fail(row, "method", f"expected one of {', '.join(FAMILIES)}")
    if table.text(row, "schedule").startswith("1f1b"):
        return FAMILIES[method]
    if method not in ("baseline", "vocab-1", "vocab-2"):
        table.fail(row, "method", "expected baseline, vocab-1 or vocab-2 with V-half")
    return "v-half" if method == "baseline" else f"v-half-{method}"


def batch_of(table, row):
    microbatch, replicas = table.integer(row, "mbs", 1), table.integer(row, "dp", 1)
    return table.integer(row, "gbs", 1) // (microbatch * replicas)


def replayed(table, row, family):
    """The makespan of the measured passes; those of the split embedding are parts of S and T.

    Nothing waits for a pass of the embedding, or its result would be late: its place in the list hardly matters.
    """
    times = {}
    for kind in PASSES:
        times[kind] = [float(text) * 1e-6 for text in table.text(row, f"{kind}_us_by_rank").split()]
    stages = []
    for f, b, s, t, backward, forward in zip(*(times[kind] for kind in PASSES)):
        stages.append({"f": f, "b": b / 2, "w": b / 2, "s": s + forward, "t": t + backward})
    document = {"parallelism": {"pp": table.integer(row, "pp", 1)}, "batch": {"microbatches": batch_of(table, row)},
                "schedule": {"name": family}, "cost": {"kind": "uniform", "stages": stages}}
    return simulate(document).makespan_s


def predicted(table, row, family):
    """The prediction from sizes alone, with nothing measured."""
    sizes = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "ffn_hidden_size": "ffn",
             "vocab_size": "vocab"}
    document = {"model": {**MODEL, **{key: table.integer(row, column, 1) for key, column in sizes.items()},
                          "max_position_embeddings": table.integer(row, "seq", 1)},
                "cluster": "dgx-a100-80gb",
                "parallelism": {key: table.integer(row, key, 1) for key in ("tp", "pp", "dp")},
                "batch": {"micro_batch": table.integer(row, "mbs", 1), "global_batch": table.integer(row, "gbs", 1),
                          "sequence_length": table.integer(row, "seq", 1)},
                "schedule": {"name": family}}
    last = table.integer(row, "last_stage_layers", 0)
    if last * document["parallelism"]["pp"] != document["model"]["num_layers"] and family == "1f1b":
        document["parallelism"]["last_stage_layers"] = last
    return sluice.simulate(scenario_of(document, table.place(row)))


def score_vocabulary(table):
    def predict(row):
        family, place = family_of(table, row), table.place(row)
        setting = f"{family}, vocabulary {table.text(row, 'vocab')}, {table.text(row, 'seq')} tokens"
        measured = table.number(row, "iter_s", 1e-6, 1e6)
        out = []
        if family.startswith("v-half"):
            out.append(Skipped(place, f"{family}: the table does not have the passes of each chunk"))
        else:
            out.append(Comparison("replay of measured passes", place, setting, measured, replayed(table, row, family),
                                  "s"))
        try:
            result = predicted(table, row, family)
            out.append(Comparison("prediction from sizes", place, setting, measured, result.makespan_s, "s"))
            memory = table.number(row, "peak_mem_MB_model", 1, 1e9)  # Megatron-LM prints 2^20 bytes as MB
            peak = result.peak_memory_bytes.max() / 2**20
            out.append(Comparison("peak memory from sizes", place, setting, memory, peak, "MiB"))
        except sluice.InputError as error:
            out.append(Skipped(place, str(error)))
        return out

    return scored(table, predict)
