#!/usr/bin/env python3
"""Compares a transformer layer of hidden size 4096, its weight gradients and its attention with PyTorch.

    pytorch_layer.py --sluice-layers device_layer_benchmark --json layers.json
    pytorch_layer.py --sluice-attention attention_benchmark --only-attention --json attention.json

PyTorch runs the layer in bfloat16 as it is, compiled, and compiled with CUDA graphs, with the fastest correct backend and
mask of scaled_dot_product_attention, and the fastest of them counts. Both do the same work: gradients of weights are
accumulated in float32, and keys and values of the context are inputs with gradients. The times of PyTorch without
accumulation, with bfloat16 gradients, are printed as well. Each repetition times sluice before PyTorch and the next one
after it; each time is the median over all repetitions, measured with CUDA events. Layers of sluice are timed with its own
attention, and with cuDNN; the one with the faster forward and backward is judged. Exits with 1 if
its speed of forward and backward, or of weight gradients, relative to PyTorch is below --share, or if nothing was compared;
layers that --seconds leaves out are listed. Attention alone is only reported: layers use other kernels than attention_benchmark where
they are faster.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    torch = None

HEADS, HEAD_DIM = 32, 128
FORWARD, BACKWARD, WEIGHTS = 0, 1, 3  # as in the rows of device_layer_benchmark; 2 is I+W
OPS = {FORWARD: "F", BACKWARD: "B", WEIGHTS: "W"}
MODELS = {
    "gpt": {"ffn": 16384, "kv_heads": 32, "llama": False},
    "llama": {"ffn": 11008, "kv_heads": 32, "llama": True},
    "llama_8_kv_heads": {"ffn": 11008, "kv_heads": 8, "llama": True},
}
CUDNN = "_cudnn"  # ends the model of rows with cuDNN
# Tokens and context, the most important first: what exceeds --seconds is not timed.
SLICES = [(4096, 0), (1024, 0), (4096, 8192), (2048, 0)]
# Sizes for --try, which compiles few layers.
SMALL = {"heads": 4, "head_dim": 16, "shrink": 64, "slices": [(16, 0), (16, 32)]}
SMALL_LAYERS = [("gpt", 16, 0), ("llama_8_kv_heads", 16, 32)]


class Shape:
    """Sizes of a layer and of a slice of one sequence."""

    def __init__(self, model, tokens, context, small):
        of = MODELS[model]
        self.heads = SMALL["heads"] if small else HEADS
        self.head_dim = SMALL["head_dim"] if small else HEAD_DIM
        self.kv_heads = max(1, of["kv_heads"] * self.heads // HEADS)
        self.hidden = self.heads * self.head_dim
        self.ffn = of["ffn"] // (SMALL["shrink"] if small else 1)
        self.llama = of["llama"]
        self.tokens = tokens
        self.context = context

    def flops(self, op):
        """Executed FLOPs as in model/workload/transformer.h (SliceFlops), with only the causal part of attention."""
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        matrices = self.hidden * (width + self.hidden + (3 if self.llama else 2) * self.ffn)
        attention = 4 * self.hidden * self.tokens * (self.context + self.tokens / 2)
        gemms = 2 * self.tokens * matrices
        return {FORWARD: gemms + attention, BACKWARD: 2 * (gemms + attention), WEIGHTS: gemms}[op]


# --- attention -------------------------------------------------------------------------------------------------------


def ways_to_attend(shape, device):
    """Returns by name pairs of a context manager's maker and a function of queries [1, heads, tokens, d] and keys and values
    [1, kv_heads, context + tokens, d], to be called in that context."""
    attend = torch.nn.functional.scaled_dot_product_attention
    masks = {}
    if shape.context == 0:
        masks["is_causal"] = {"is_causal": True}
    else:
        with contextlib.suppress(ImportError):
            from torch.nn.attention.bias import causal_lower_right

            masks["causal_lower_right"] = {"attn_mask": causal_lower_right(shape.tokens, shape.context + shape.tokens)}
        seen = torch.ones(shape.tokens, shape.context + shape.tokens, dtype=torch.bool, device=device)
        masks["mask"] = {"attn_mask": seen.tril(shape.context)}

    # All backends but the one that stores all scores; on a CPU there is one.
    backends = {"any": contextlib.nullcontext}
    if device.type == "cuda":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backends = {}
        for name in ("FLASH", "CUDNN", "EFFICIENT"):
            if hasattr(SDPBackend, name + "_ATTENTION"):
                backend = getattr(SDPBackend, name + "_ATTENTION")
                backends[name.lower()] = lambda backend=backend: sdpa_kernel(backend)

    def call(mask, grouped):
        def attended(queries, keys, values):
            if shape.kv_heads < shape.heads and not grouped:
                keys, values = (of.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for of in (keys, values))
            more = {"enable_gqa": True} if grouped else {}
            return attend(queries, keys, values, **mask, **more)

        return attended

    ways = {}
    for mask_name, mask in masks.items():
        for backend_name, backend in backends.items():
            for grouped in (False, True) if shape.kv_heads < shape.heads else (False,):
                name = f"{mask_name}, {backend_name}" + (", enable_gqa" if grouped else "")
                ways[name] = (backend, call(mask, grouped))
    return ways


def attention_error(shape, out, queries, keys, values):
    """Relative error of the first and the last query against float32."""
    worst = 0.0
    for row in (0, shape.tokens - 1):
        seen = shape.context + row + 1
        k, v = (
            of[0, :, :seen].float().repeat_interleave(shape.heads // shape.kv_heads, dim=0) for of in (keys, values)
        )
        scores = torch.einsum("hd,hkd->hk", queries[0, :, row].float(), k) / math.sqrt(shape.head_dim)
        reference = torch.einsum("hk,hkd->hd", scores.softmax(-1), v)
        error = float((out[0, :, row].float() - reference).norm() / reference.norm())
        worst = error if not error <= worst else worst
    return worst


def short(why):
    return str(why).splitlines()[0][:200] if str(why) else type(why).__name__


def best_way_to_attend(clock, shape, device):
    """Returns the fastest correct way (name, context, function) and its times of forward and of backward. Fails if there is
    none."""

    def random(heads, tokens):
        out = torch.randn(1, tokens, heads, shape.head_dim, device=device, dtype=torch.bfloat16)
        return out.transpose(1, 2).requires_grad_()

    queries = random(shape.heads, shape.tokens)
    keys, values = (random(shape.kv_heads, shape.context + shape.tokens) for _ in range(2))
    best = None
    reasons = []
    for name, (context, way) in ways_to_attend(shape, device).items():
        try:
            with context():
                out = way(queries, keys, values)
                gradient = torch.randn_like(out)
                error = attention_error(shape, out.detach(), queries.detach(), keys.detach(), values.detach())
                if not error < 2e-2:
                    reasons.append(f"{name}: relative error {error:.2g} against float32")
                    continue
                times = {FORWARD: [], BACKWARD: []}
                for _ in range(12):
                    made = []
                    times[FORWARD].append(clock.seconds(lambda: made.append(way(queries, keys, values))))
                    times[BACKWARD].append(clock.seconds(lambda: made[0].backward(gradient)))
                times = {op: of[2:] for op, of in times.items()}
                took = sum(statistics.median(of) for of in times.values())
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as why:
            reasons.append(f"{name}: {short(why)}")
            continue
        if best is None or took < best[0]:
            best = (took, (name, context, way), times)
    if best is None:
        raise SystemExit("expected a scaled_dot_product_attention with correct results:\n  " + "\n  ".join(reasons))
    return best[1:]


# --- the layer -------------------------------------------------------------------------------------------------------


class Layer(torch.nn.Module if torch else object):
    """The layer of kernels/layer.h: GPT with LayerNorm, biases and tanh GELU, or Llama with RMSNorm, rotary
    embedding and SwiGLU. GEMMs with the same input are fused."""

    def __init__(self, shape, attend, device):
        super().__init__()
        self.shape = shape
        self.attend = attend

        def random(*sizes):
            return torch.nn.Parameter(torch.randn(*sizes, device=device).mul_(0.02).to(torch.bfloat16))

        hidden, ffn = shape.hidden, shape.ffn
        all_heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        wide = 2 * ffn if shape.llama else ffn
        ones = lambda: torch.nn.Parameter(torch.ones(hidden, device=device, dtype=torch.bfloat16))
        self.weights = torch.nn.ParameterDict({
            "norm1": ones(),
            "qkv": random(all_heads, hidden),
            "output": random(hidden, hidden),
            "norm2": ones(),
            "up": random(wide, hidden),
            "down": random(hidden, ffn),
        })
        sizes = {"norm1": hidden, "qkv": all_heads, "output": hidden, "norm2": hidden, "up": wide, "down": hidden}
        self.biases = torch.nn.ParameterDict({} if shape.llama else {name: random(size) for name, size in sizes.items()})
        if shape.llama:
            half = shape.head_dim // 2
            frequencies = 10000.0 ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
            places = torch.arange(shape.context, shape.context + shape.tokens, device=device, dtype=torch.float64)
            angles = torch.cat([torch.outer(places, frequencies)] * 2, dim=-1)[:, None, :]
            self.register_buffer("cosines", angles.cos().to(torch.bfloat16))
            self.register_buffer("sines", angles.sin().to(torch.bfloat16))

    def norm(self, x, name):
        functional = torch.nn.functional
        if not self.shape.llama:
            return functional.layer_norm(x, x.shape[-1:], self.weights[name], self.biases[name], 1e-5)
        return functional.rms_norm(x, x.shape[-1:], self.weights[name], 1e-5)

    def linear(self, x, name):
        return torch.nn.functional.linear(x, self.weights[name], None if self.shape.llama else self.biases[name])

    def rotated(self, x):
        first, second = x.chunk(2, dim=-1)
        return x * self.cosines + torch.cat((-second, first), dim=-1) * self.sines

    def forward(self, x, context_keys, context_values):
        shape = self.shape
        qkv = self.linear(self.norm(x, "norm1"), "qkv").view(shape.tokens, -1, shape.head_dim)
        queries, keys, values = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        if shape.llama:
            queries, keys = self.rotated(queries), self.rotated(keys)
        if shape.context > 0:
            keys, values = torch.cat((context_keys, keys)), torch.cat((context_values, values))
        queries, keys, values = (of.transpose(0, 1).unsqueeze(0) for of in (queries, keys, values))
        attended = self.attend(queries, keys, values)[0].transpose(0, 1).reshape(shape.tokens, shape.hidden)
        x = x + self.linear(attended, "output")
        up = self.linear(self.norm(x, "norm2"), "up")
        functional = torch.nn.functional
        if shape.llama:
            gate, up = up.chunk(2, dim=-1)
            return x + self.linear(functional.silu(gate) * up, "down")
        return x + self.linear(functional.gelu(up, approximate="tanh"), "down")


# --- timing ----------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds of the work on the GPU's stream, by events; on a CPU by its clock."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"

    def seconds(self, work):
        if not self.on_gpu:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3


def peak_of(clock, device, side):
    """Best measured FLOP/s of a GEMM of side x side x side."""
    a, b = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / min(clock.seconds(lambda: torch.mm(a, b, out=out)) for _ in range(20))


def random_like(device, *sizes, deviation=1.0):
    return torch.randn(*sizes, device=device).mul_(deviation).to(torch.bfloat16)


class TimedLayer:
    """A layer with its inputs, and the ways in which PyTorch runs it."""

    def __init__(self, clock, shape, device):
        self.clock, self.shape = clock, shape
        (self.attention, self.context, attend), _ = best_way_to_attend(clock, shape, device)
        self.layer = Layer(shape, attend, device)
        self.x = random_like(device, shape.tokens, shape.hidden).requires_grad_()
        sizes = (max(shape.context, 1), shape.kv_heads, shape.head_dim)
        self.keys, self.values = (random_like(device, *sizes).requires_grad_() for _ in range(2))
        self.gradient = random_like(device, shape.tokens, shape.hidden, deviation=1e-2)
        self.parameters = list(self.layer.parameters())
        self.sums = [torch.zeros_like(of, dtype=torch.float32) for of in self.parameters]
        self.ways = {"eager": self.layer}
        for name, mode in {"compiled": None, "compiled, CUDA graphs": "reduce-overhead"}.items():
            if mode is None or clock.on_gpu:
                self.ways[name] = torch.compile(self.layer, dynamic=False, mode=mode)
        if clock.on_gpu:
            # CUDA graphs then read them where they are, instead of copying them first.
            for of in (self.x, self.keys, self.values):
                torch._dynamo.mark_static_address(of)
        self.why_not = {}

    def backward(self, out, accumulated):
        out.backward(self.gradient)
        if accumulated:
            for parameter, total in zip(self.parameters, self.sums):
                total.add_(parameter.grad)

    def times_of(self, name, accumulated, repeats):
        """Seconds of forward and of backward, after a warm-up."""
        inputs = [self.x] + ([self.keys, self.values] if self.shape.context else [])
        times = {FORWARD: [], BACKWARD: []}
        for repeat in range(5 + repeats):
            for leaf in inputs + self.parameters:
                leaf.grad = None
            torch.compiler.cudagraph_mark_step_begin()
            made = []
            with self.context():
                forward = self.clock.seconds(lambda: made.append(self.ways[name](self.x, self.keys, self.values)))
            backward = self.clock.seconds(lambda: self.backward(made[0], accumulated))
            results = made + [leaf.grad for leaf in inputs + self.parameters]
            if repeat == 0 and not all(bool(of.isfinite().all()) for of in results):
                raise SystemExit("not all results of PyTorch's layer are finite")
            if repeat >= 5:
                times[FORWARD].append(forward)
                times[BACKWARD].append(backward)
        return times

    def weight_gradients(self):
        """Returns by name functions that add the gradients of all linear layers to float32 sums."""
        device, shape, layer = self.x.device, self.shape, self.layer
        rows = []
        for name, total in zip((name for name, _ in layer.named_parameters()), self.sums):
            folder, _, part = name.rpartition(".")
            if folder == "weights" and total.dim() == 2:
                inputs = random_like(device, shape.tokens, total.shape[1])
                rows.append((inputs, random_like(device, shape.tokens, total.shape[0], deviation=1e-2), total))
            elif folder == "biases" and not part.startswith("norm"):
                rows.append((None, random_like(device, shape.tokens, total.shape[0], deviation=1e-2), total))

        def run(gemm):
            for inputs, gradient, total in rows:
                if inputs is None:
                    total.add_(gradient.sum(0, dtype=torch.float32))
                else:
                    gemm(total, gradient, inputs)

        return {
            "mm, add_": lambda: run(lambda total, gradient, inputs: total.add_(torch.mm(gradient.t(), inputs))),
            "addmm to float32": lambda: run(
                lambda total, gradient, inputs: torch.addmm(total, gradient.t(), inputs, out_dtype=torch.float32, out=total)
            ),
        }

    def measure(self, repeats, into):
        """Appends seconds to the lists of `into`, by (op, way)."""
        for name in list(self.ways):
            for accumulated in (True, False):
                try:
                    times = self.times_of(name, accumulated, repeats)
                except Exception as why:  # torch.compile raises errors of many kinds
                    self.why_not[name] = short(why)
                    del self.ways[name]
                    break
                for op, of in times.items():
                    if accumulated or op == BACKWARD:
                        into.setdefault((op, name if accumulated else name + ", bfloat16 gradients"), []).extend(of)
        for name, work in self.weight_gradients().items():
            try:
                times = [self.clock.seconds(work) for _ in range(3 + repeats)][3:]
            except (RuntimeError, TypeError) as why:
                self.why_not[name] = short(why)
                continue
            into.setdefault((WEIGHTS, name), []).extend(times)


# --- the comparison --------------------------------------------------------------------------------------------------


def sluice_times(program, pattern):
    """Runs a benchmark of sluice. Returns median seconds and the label by the name of the row, without the iterations."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        command = [program, f"--benchmark_filter={pattern}", f"--benchmark_out={path}", "--benchmark_out_format=json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            with open(path, encoding="utf-8") as file:
                rows = json.load(file)["benchmarks"]
        except (OSError, ValueError, KeyError):
            rows = []
    found = {
        row["name"].split("/iterations:")[0]: (row["median_ms"] / 1e3, row.get("label", ""))
        for row in rows
        if "median_ms" in row
    }
    if done.returncode != 0 or not found:
        lines = [row.get("error_message", "") for row in rows if row.get("error_message")] + done.stdout.splitlines()[-1:]
        print(f"{program}, {pattern}: {lines[0] if lines else 'no output'} (exit code {done.returncode})")
    return found


def in_both_orders(repetitions, ours, theirs):
    """Calls two functions in turn; which one begins alternates."""
    for repetition in range(repetitions):
        for work in (ours, theirs) if repetition % 2 == 0 else (theirs, ours):
            work()


def row_of(name, op, way, times, sluice, flops, peak):
    """`times` of PyTorch, in seconds, and the medians of the runs of sluice. Prints the row."""
    median = statistics.median(times)
    row = {
        "name": name,
        "label": OPS[op],
        "way": way,
        "median_ms": 1e3 * median,
        "least_ms": 1e3 * min(times),
        "most_ms": 1e3 * max(times),
        "sluice_ms": [1e3 * of for of in sluice],
        "TFLOP/s": flops / median / 1e12,
        "of_peak": flops / median / peak,
    }
    text = f"{name:52} {OPS[op]} {row['median_ms']:8.3f} ms  {row['of_peak']:.2f} of the peak"
    if sluice:
        row["sluice_of_pytorch"] = median / statistics.median(sluice)
        text += f"  sluice {1e3 * min(sluice):.3f} to {1e3 * max(sluice):.3f} ms: "
        text += f"{row['sluice_of_pytorch']:.2f} of PyTorch's speed"
    print(f"{text}  ({way})", flush=True)
    return row


def compare_layer(options, clock, shape, model, device, peak, rows):
    """Times one layer and slice, of sluice without and with cuDNN. Returns whether the faster of the two
    is fast enough; without sluice it is."""
    slice_of = f"tokens:{shape.tokens}/context:{shape.context}"
    names = [f"layer/{model}{libraries}/{slice_of}" for libraries in (("", CUDNN) if options.sluice_layers else ("",))]
    timed = TimedLayer(clock, shape, device)
    theirs, ours, notes = {}, {}, set()

    def run_sluice():
        if options.sluice_layers:
            pattern = f"^layer/{model}({CUDNN})?/{slice_of}/op:[013]/"
            for row, (seconds, label) in sluice_times(options.sluice_layers, pattern).items():
                ours.setdefault(row, []).append(seconds)
                notes.update(label.split(", ", 1)[1:])  # after the op

    in_both_orders(options.repetitions, run_sluice, lambda: timed.measure(options.repeats, theirs))
    for way, why in timed.why_not.items():
        print(f"  not {way}: {why}")
    for note in sorted(notes):
        print(f"  {model}{CUDNN}: {note}")
    median = {key: statistics.median(of) for key, of in theirs.items()}
    both = {way: median[FORWARD, way] + median[BACKWARD, way] for op, way in median if op == FORWARD}
    best = min(both, key=both.get)
    plain = min((of, way) for (op, way), of in median.items() if op == BACKWARD and way.endswith("gradients"))
    best_weights = min((of, way) for (op, way), of in median.items() if op == WEIGHTS)[1]
    of_layer, of_weights = {}, {}
    for name in names:
        for op, way in ((FORWARD, best), (BACKWARD, best), (WEIGHTS, best_weights)):
            text = way if op == WEIGHTS else f"{way}; {timed.attention}"
            sluice = ours.get(f"{name}/op:{op}", [])
            rows.append(row_of(f"{name}/op:{op}", op, text, theirs[op, way], sluice, shape.flops(op), peak))
        rows[-2]["bfloat16_gradients_ms"] = 1e3 * plain[0]
        rows[-2]["ways_ms"] = {f"{OPS[op]}, {way}": 1e3 * of for (op, way), of in median.items()}
        if notes and name != names[0]:
            rows[-3]["notes"] = sorted(notes)
        if any(f"{name}/op:{op}" not in ours for op in OPS):
            continue
        sluice = {op: statistics.median(ours[f"{name}/op:{op}"]) for op in OPS}
        of_layer[name] = both[best] / (sluice[FORWARD] + sluice[BACKWARD])
        of_weights[name] = median[WEIGHTS, best_weights] / sluice[WEIGHTS]
        rows[-3]["sluice_of_pytorch_forward_and_backward"] = of_layer[name]
    every = ", ".join(f"{way} {1e3 * of:.3f} ms" for way, of in both.items())
    print(f"  F+B of PyTorch: {every}; B with bfloat16 gradients {1e3 * plain[0]:.3f} ms")
    if not options.sluice_layers:
        return True
    missing = [name for name in names if name not in of_layer]
    for name in missing:
        print(f"  {name}: not timed by sluice")
    if missing:
        return False
    faster = max(names, key=of_layer.get)
    fine = min(of_layer[faster], of_weights[faster]) >= options.share
    below = "" if fine else f": below {options.share}"
    for name in names:
        judged = f" (the faster one){below}" if name == faster else ""
        print(f"  {name} has {of_layer[name]:.2f} of PyTorch's speed for F+B and {of_weights[name]:.2f} for W{judged}")
    return fine


def compare_attention(options, clock, shape, device, peak, rows):
    name = f"attention/tokens:{shape.tokens}/context:{shape.context}/kv_heads:{shape.kv_heads}"
    theirs, ours, ways = {}, {}, set()

    def run_sluice():
        if options.sluice_attention:
            for row, (seconds, _) in sluice_times(options.sluice_attention, f"^{name}/backward:[01]/").items():
                ours.setdefault(row, []).append(seconds)

    def run_pytorch():
        (way, _, _), times = best_way_to_attend(clock, shape, device)
        ways.add(way)
        for op, of in times.items():
            theirs.setdefault(op, []).extend(of)

    in_both_orders(options.repetitions, run_sluice, run_pytorch)
    attention = 4 * shape.hidden * (shape.tokens * shape.context + shape.tokens * (shape.tokens + 1) / 2)
    for op, factor in ((FORWARD, 1), (BACKWARD, 2.5)):
        sluice = ours.get(f"{name}/backward:{op}/products:0", [])
        rows.append(row_of(f"{name}/backward:{op}", op, " or ".join(sorted(ways)), theirs[op], sluice, factor * attention, peak))
    if options.sluice_attention and not ours:
        print(f"  {name}: not timed by sluice")
        return False
    return True


def shapes_of(options):
    """(model, shape), the most important first."""
    if options.small and not options.only_attention:
        for model, tokens, context in SMALL_LAYERS:
            yield model, Shape(model, tokens, context, True)
        return
    for tokens, context in SMALL["slices"] if options.small else SLICES:
        for model in ("llama", "llama_8_kv_heads") if options.only_attention else MODELS:
            # attention_benchmark has 8 key heads with 4096 tokens and without or with a long context only.
            if not options.only_attention or options.small or model == "llama" or (tokens, context) == (4096, 0):
                yield model, Shape(model, tokens, context, options.small)


def options_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--sluice-layers", metavar="PROGRAM", help="path of device_layer_benchmark, to compare with")
    parser.add_argument("--sluice-attention", metavar="PROGRAM", help="path of attention_benchmark, to compare with")
    parser.add_argument("--only-attention", action="store_true", help="time attention instead of layers")
    parser.add_argument("--share", type=float, default=1.0, help="required fraction of PyTorch's speed (default 1.0)")
    parser.add_argument("--repeats", type=int, default=10, help="number of timings per row and repetition (default 10)")
    parser.add_argument("--repetitions", type=int, default=2, help="number of turns of sluice and PyTorch (default 2)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="leave out layers that would end after this time (default: none)")
    parser.add_argument("--try", dest="small", action="store_true", help="run with tiny sizes on the CPU, without meaningful timings")
    return parser.parse_args()


def main():
    began = time.monotonic()
    options = options_of()
    if torch is None:
        print("nothing timed: PyTorch is not installed")
        return 0
    if not options.small and not torch.cuda.is_available():
        print("nothing timed: PyTorch sees no GPU")
        return 0
    device = torch.device("cpu" if options.small else "cuda")
    torch.manual_seed(1)
    clock = Clock(device)
    peak = peak_of(clock, device, 64 if options.small else 8192)
    name = "a CPU" if options.small else torch.cuda.get_device_name()
    print(f"{name}, PyTorch {torch.__version__}, bfloat16 GEMM {peak / 1e12:.0f} TFLOP/s", flush=True)
    rows, slow, late, longest = [], [], [], 0.0
    for model, shape in shapes_of(options):
        begin = time.monotonic()
        if begin - began + longest > options.seconds:
            late.append(f"{model}, {shape.tokens} tokens after {shape.context}")
            continue
        torch.compiler.reset()
        if options.only_attention:
            fine = compare_attention(options, clock, shape, device, peak, rows)
        else:
            fine = compare_layer(options, clock, shape, model, device, peak, rows)
        if not fine:
            slow.append(f"{model}, {shape.tokens} tokens after {shape.context}")
        longest = max(longest, time.monotonic() - begin)
        if options.json:  # after each layer, in case that the time ends
            document = {"device": name, "pytorch": torch.__version__, "peak_TFLOP/s": peak / 1e12, "rows": rows}
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
    for what, which in (("slower than required, or not timed by sluice", slow), ("left out, for lack of time", late)):
        if which:
            print(f"{what}: {'; '.join(which)}")
    if not rows:
        print(f"nothing compared in {options.seconds:g} s", file=sys.stderr)
    return 1 if slow or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
