"""Tables of peak memory."""

from iterations import scenario_of, simulate
from score import Comparison, base_of, scored
from zero_bubble_schedule import Budget, published

import sluice

GPT2_WORDS = 50257  # of the vocabulary of GPT-2's tokenizer, which these tests use; the arguments name only its files

# PyTorch's deterministic mode needs CUBLAS_WORKSPACE_CONFIG=:4096:8 or :16:8; these tests set the former: 32 MiB for
# each of two threads, on every GPU. Newer GPUs have this size by default.
DETERMINISTIC_WORKSPACE = 2 * 32 << 20
TRANSFORMER_ENGINE_ON_A100 = 4 << 20
NODES = {"a100": "dgx-a100-80gb", "h100": "dgx-h100", "gb200": "gb200-nvl72"}


def arguments_of(line):
    """Returns the arguments as on a command line: the tests' files write "--flag True"."""
    words = line.split(" ")
    out = []
    words = [word for word in words if word]
    i = 0
    while i < len(words):
        value = words[i + 1] if i + 1 < len(words) and words[i].startswith("--") else ""
        if value != "False":
            out.append(words[i])
        i += 2 if value in ("True", "False") else 1
    if "--vocab-size " not in line:
        out.append(f"--vocab-size {GPT2_WORDS}")
    return " ".join(out)


def score_golden_values(table):
    """Megatron-LM's golden values: the peak of allocated memory of the last rank."""
    def predict(row):
        if not table.text(row, "mem_max_allocated_bytes"):
            return None
        place, line = table.place(row), table.text(row, "all_args")
        family, gpu = table.text(row, "family"), table.text(row, "gpu_type")
        if family not in ("gpt", "moe"):
            raise sluice.InputError(f"{place}: no GPT model")
        if "--perform-rl-step" in line:
            raise sluice.InputError(f"{place}: reinforcement learning")
        if gpu not in NODES:
            table.fail(row, "gpu_type", "expected a100, h100 or gb200")
        deterministic = "--deterministic-mode" in line
        # The older container, of these files and of the tests of experts, has a Transformer Engine without
        # deterministic fused attention.
        source = table.text(row, "source")
        older = "_lts_dgxa100_" in source or (family == "moe" and "_lts_" in source)
        keys = {"parallelism/flash_attention": False} if older and deterministic else {}
        arguments = f"{arguments_of(line)} --world-size {table.integer(row, 'gpus', 1, 1 << 20)}"
        keys.update({"/cluster": NODES[gpu], "cost": "analytic"})
        result = simulate(sluice.Scenario.from_megatron(arguments, place, **keys))
        peak = int(result.peak_memory_bytes[-1])
        if deterministic and gpu == "a100":
            own = result.resolved["gpu"]["workspace_bytes"]
            peak += DETERMINISTIC_WORKSPACE + TRANSFORMER_ENGINE_ON_A100 - own
        measured = table.number(row, "mem_max_allocated_bytes", 1, 1e15) / 1e9
        group = f"peak allocated, {family}, {gpu}"
        return Comparison(group, place, table.text(row, "test"), measured, peak / 1e9, "GB").of(result)

    return scored(table, predict)


def score_korthikanti_memory(table):
    """Korthikanti et al. 2022, figure 1."""
    models = base_of("korthikanti-memory")

    def predict(row):
        model, recompute = table.text(row, "model"), table.text(row, "recompute")
        if model not in models:
            table.fail(row, "model", "expected a model of korthikanti-memory.json")
        of = models[model]
        document = {
            **of,
            "cluster": "dgx-a100-80gb",
            "model": {**of["model"], "vocab_size": 51200, "max_position_embeddings": 2048},
            "batch": {**of["batch"], "sequence_length": 2048},
            "parallelism": {**of["parallelism"], "flash_attention": False, "tp": 8},
        }
        if recompute == "seqsel":
            document["parallelism"].update(sequence_parallel=True, recompute="selective")
        elif recompute != "none":
            table.fail(row, "recompute", "expected none or seqsel")
        place, setting = table.place(row), f"{model}, {recompute}"
        held = simulate(scenario_of(document, place)).memory_at_peak
        # The paper's figure excludes the embedding, so the second stage is compared if there is one.
        middle = min(1, len(held["weights"]) - 1)
        states = int(sum(held[name][middle] for name in ("weights", "gradients", "optimizer")))
        activations = int(held["activations"][0] + held["keys_values"][0])
        return [
            Comparison("parameters and optimizer", place, setting,
                       table.number(row, "params_and_optimizer_gib", 0, 1e6), states / 2**30, "GiB"),
            Comparison("activations of the first rank", place, setting,
                       table.number(row, "activations_gib", 0, 1e6), activations / 2**30, "GiB"),
        ]

    return scored(table, predict)


FAMILIES = {"1F1B": "1f1b", "1F1B-I": "interleaved-1f1b", "ZB-1p": "zb-h1", "ZB-2p": "zb-h2"}


def score_zero_bubble_memory(table):
    """Qi et al. 2023, table 4: the peak of the worst rank."""
    def predict(row):
        place, name = table.place(row), table.text(row, "schedule")
        if name not in FAMILIES:
            table.fail(row, "schedule", "expected 1F1B, 1F1B-I, ZB-1p or ZB-2p")
        layers, ranks = table.integer(row, "layers", 1, 10000), table.integer(row, "pp", 1, 1000)
        if (layers + 2) % ranks:
            table.fail(row, "layers", "expected two less than a multiple of pp")
        # The first and last stage have one layer fewer. With interleaving a chunk is one layer.
        chunks = (layers + 2) // ranks if name == "1F1B-I" else 1
        stages = [(layers + 2) // (ranks * chunks)] * (ranks * chunks)
        stages[0] -= 1
        stages[-1] -= 1
        document = base_of("zero-bubble-memory")
        sequence = table.integer(row, "seq", 1, 1 << 20)
        for part, keys in (
            ("model", {"num_layers": layers, "hidden_size": table.integer(row, "hidden", 1, 1 << 20),
                       "num_attention_heads": table.integer(row, "heads", 1, 1 << 12),
                       "max_position_embeddings": sequence}),
            ("batch", {"sequence_length": sequence, "micro_batch": table.integer(row, "micro_batch", 1, 1 << 12),
                       "microbatches": table.integer(row, "num_microbatches", 1, 1 << 16)}),
            ("parallelism", {"pp": ranks, "stage_layers": stages, **({"vpp": chunks} if chunks > 1 else {})}),
        ):
            document.setdefault(part, {}).update(keys)
        document["schedule"] = FAMILIES[name]
        held = {"ZB-1p": ranks, "ZB-2p": 2 * ranks}.get(name)
        # The paper's scheduler, with a limit of held microbatches per rank and op times close to its profiles: I as
        # long as F, W 0.7 of it (table 6).
        budget = held and Budget(10_000_000, 10_000_000, 7_000_000, limit=held)
        found = published([budget] * ranks, document["batch"]["microbatches"], 0) if held else None
        result = simulate(scenario_of(document, place), schedule=found and found.schedule())
        setting = f"{table.text(row, 'model')} {name}, {table.text(row, 'num_microbatches')} microbatches"
        measured = table.number(row, "peak_mem_GB", 1e-3, 1e6)
        peak = int(result.peak_memory_bytes.max()) / 1e9
        return Comparison("peak memory of the worst rank", place, setting, measured, peak, "GB")

    return scored(table, predict)
