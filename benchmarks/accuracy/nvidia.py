"""Runs of NVIDIA's DGXC benchmarks, of NeMo's performance summary of 2024 and of Megatron-Bridge's.

Groups are of one GPU type, precision, and kind: dense models, models with experts, hybrid ones, whose shapes the tables
do not have, fully sharded runs, and fine-tuning.
"""

import statistics

import recipes
from iterations import simulate
from score import Comparison, Verdict, scored

import sluice

BRIDGE = recipes.read("megatron-bridge")
WORDS = {"BF16": "bf16", "NVFP4": "nvfp4", "MXFP8": "mxfp8", "FP8-MX": "mxfp8", "FP8-CS": "fp8-current"}


def cell(table, row, column):
    return table.text(row, column) if column in table.columns else ""


def precision_of(table, row):
    """Returns the precision of a row.

    Delayed scaling was NeMo's until 2024; Megatron-Bridge's recipes have current scaling, and block scaling for experts
    on Blackwell.
    """
    word = table.text(row, "precision")
    if word in WORDS:
        return WORDS[word]
    if word == "FP8":
        return "fp8-current" if "task" in table.columns else "fp8"
    if not word.startswith("FP8 "):
        table.fail(row, "precision", "expected a known precision")
    return "mxfp8" if cell(table, row, "experts") and "B200" in table.text(row, "gpu_type") else "fp8-current"


def facts_of(table, row):
    """Returns what recipes depend on. Raises InputError for runs that are not modeled."""
    if cell(table, row, "scaling") == "example log":
        raise sluice.InputError(f"{table.place(row)}: no GPU type")
    facts = {"model": table.text(row, "model"), "release": cell(table, row, "release")}
    if facts["model"] not in BRIDGE["models"]:
        table.fail(row, "model", "expected a model of megatron-bridge.json")
    facts["gpu"] = table.text(row, "gpu_type").removeprefix("DGX-")
    if facts["gpu"] not in ("H100", "B200", "B300", "GB200", "GB300"):
        raise sluice.InputError(f"{table.place(row)}: no known GPU type")
    facts["precision"] = precision_of(table, row)
    catalogued = isinstance(BRIDGE["models"][facts["model"]], str) and facts["release"]
    facts["experts"] = "yes" if cell(table, row, "experts") or catalogued else ""
    facts["layers"] = cell(table, row, "layers")
    facts["fsdp"] = "yes" if cell(table, row, "fsdp") not in ("", "0") else ""
    facts["task"] = cell(table, row, "task").removesuffix(" Performance")
    facts["stages"] = str(table.integer(row, "pp", 1, 1000) * table.integer(row, "vp", 1, 1000))
    return facts


def run_of(table, row):
    """Returns the run of a row and its group: "H100 fp8, experts".

    Where stages times layers do not divide, embedding and head count as a layer each, as in NeMo's recipe of Llama 3.1
    405B.
    """
    facts = facts_of(table, row)
    model = BRIDGE["models"][facts["model"]]
    base = recipes.scenario(BRIDGE, facts, model)
    parallelism = base["parallelism"]
    parallelism["precision"] = facts["precision"]
    layers, stages = int(facts["layers"] or 0), int(facts["stages"])
    if isinstance(model, dict) and layers != 61 and layers % stages and (layers + 2) % stages == 0:
        counts = parallelism["stage_layers"] = [(layers + 2) // stages] * stages
        counts[0] -= 1
        counts[-1] -= 1
    read = sluice.Table(table)
    read.drop("schedule", "recompute")  # "none" without a pipeline; not published
    if "vpp" in parallelism:
        read.drop("vp")
    if isinstance(model, str):
        read.drop("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
    run = read.run(row, base, timed=False)
    setting = f"{facts['model']}, {table.text(row, 'gpus')} GPUs, {run.setting}"
    run = run._replace(setting=setting, seconds=table.number(row, "iter_s", 1e-6, 1e6))
    return run, f"{facts['gpu']} {facts['precision']}{kind_of(facts, model)}"


def kind_of(facts, model):
    """Returns the last part of a group's name: what its runs have that others do not."""
    if not facts["layers"] or facts["model"] == "Nemotron-H":
        return ", hybrid"
    kind = ", experts" if isinstance(model, str) or "num_experts" in model else ""
    if facts["fsdp"]:
        kind += ", FSDP"
    return kind if facts["task"] in ("", "Pre-Training") else f"{kind}, {facts['task']}"


def cheap_modules(document):
    """Returns the modules that selective recomputation repeats by default, as a plan does."""
    model = document["model"]
    latent = "multi_latent_attention" in model
    experts = "num_experts" in model or document["parallelism"].get("ep", 1) > 1
    if not experts and not latent:
        return ["core_attn"]
    return ["layernorm"] + ["moe_act"] * experts + ["mla_up_proj"] * latent


def with_least_recomputation(scenario, first):
    """Returns the prediction with what the recipe recomputes, else with the least recomputation that fits.

    With none if nothing fits: the tables do not name what is recomputed.
    """
    document = scenario.to_dict()
    if "recompute" in document["parallelism"] or first.fits:
        return first
    document["parallelism"]["recompute_modules"] = cheap_modules(document)
    for recompute in ("selective", "full"):
        document["parallelism"]["recompute"] = recompute
        found = simulate(document)
        if found.fits:
            return found
    return first


def score_nvidia(table):
    def predict(row):
        run, group = run_of(table, row)
        result = simulate(run.scenario)
        fits = with_least_recomputation(run.scenario, result).fits
        return [
            Verdict(run.place, run.setting, True, fits),
            Comparison(group, run.place, run.setting, run.seconds, result.makespan_s, "s").of(result).counted(result),
        ]

    return scored(table, predict)


def rows_by_group(table):
    """Yields the group, the scenario, the place and the seconds of each row, for `sluice calibrate`."""
    for row in range(len(table)):
        try:
            run, group = run_of(table, row)
            yield group, run.scenario, run.place, run.seconds
        except sluice.InputError:
            continue  # reported with the scores


EXACT_PLANS = 100  # configurations of a plan that are exact
SIZES = ("tp", "cp", "pp", "ep", "etp", "micro_batch")  # that experts choose; schedules and layers follow from them


def agreement_of(run, gpus):
    """Returns by how much the published configuration is slower, in prediction, than the plan's first, and a text."""
    published = with_least_recomputation(run.scenario, simulate(run.scenario))
    base = run.scenario.to_dict()
    base["parallelism"].pop("recompute_modules", None)
    families = [family["name"] for family in sluice.families() if family["in_megatron_lm"]]
    try:
        plan = sluice.plan(base, gpus=gpus, slices=[1], schedules=families, top=EXACT_PLANS, refine=False)
    except sluice.DoesNotFit:
        raise sluice.InputError(f"{run.place}: no configuration fits") from None
    rows = [(row["iteration_s"], tuple(row[size] for size in SIZES)) for row in plan.rows]
    sizes = tuple(published.resolved[size] for size in SIZES)
    own_s = min([published.makespan_s] + [seconds for seconds, of in rows if of == sizes])
    faster = {of for seconds, of in rows if seconds < own_s}
    exact = len(rows) < EXACT_PLANS or own_s <= rows[EXACT_PLANS - 1][0]
    best_s = rows[0][0]
    slower = published.makespan_s / best_s - 1
    rank = f"#{len(faster) + 1}" if exact else f"after #{len(faster)}"
    fits = "" if published.fits else " (does not fit)"
    return slower, (
        f"{100 * slower:+6.1f} %  sizes {rank}  {published.makespan_s:.4g} s published{fits}, {best_s:.4g} s best"
        f"  {run.setting}\n          best: {plan.rows[0]['flags']}\n"
    )


def agreement_text(table):
    """Compares every distinct configuration with the best of all that Megatron-LM has for its GPUs and batch.

    Lists by how much it is slower, in prediction, and the rank of its sizes among those of the plan, with medians by
    group.
    """
    out = "published configurations against the best for Megatron-LM, both predicted:\n"
    slower, seen = {}, set()
    for row in range(len(table)):
        try:
            run, group = run_of(table, row)
            if (group, run.setting) in seen:
                continue  # another release
            seen.add((group, run.setting))
            by, text = agreement_of(run, table.integer(row, "gpus"))
            slower.setdefault(group, []).append(by)
            out += f"{group}: {text}"
        except sluice.InputError as error:
            out += f"skipped: {error}\n"

    def summary(values):
        median = 100 * statistics.median(values)
        return f"{len(values)} configurations: slower by {median:.1f} % (median), at most {100 * max(values):.1f} %\n"

    out += "".join(f"{group}: {summary(slower[group])}" for group in sorted(slower))
    return out + (summary([value for values in slower.values() for value in values]) if slower else "")
