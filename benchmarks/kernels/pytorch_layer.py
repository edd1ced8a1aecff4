#!/usr/bin/env python3
"""Times one transformer layer of hidden size 4096 in PyTorch, with the same rows as device_layer_benchmark.

    device_layer_benchmark --benchmark_out=sluice.json --benchmark_out_format=json
    pytorch_layer.py --json pytorch.json --against sluice.json

Uses bfloat16 and the fastest correct combination of backend and mask of scaled_dot_product_attention, and times forward
and backward with CUDA events. Gradients are bfloat16 and are not accumulated, which is fastest in PyTorch (sluice
accumulates in float32). Keys and values of the context are inputs with gradients. With --against, prints the speed of
sluice relative to PyTorch, and exits with 1 if that of forward and backward of a layer is below --share.
"""

import argparse
import contextlib
import json
import math
import sys
import time

HEADS, HEAD_DIM = 32, 128
OPS = {0: "F", 1: "B"}  # as in the rows of sluice; I+W has no counterpart
MODELS = {
    "gpt": {"ffn": 16384, "kv_heads": 32, "llama": False},
    "llama": {"ffn": 11008, "kv_heads": 32, "llama": True},
    "llama_8_kv_heads": {"ffn": 11008, "kv_heads": 8, "llama": True},
}
SLICES = [(tokens, context) for tokens in (2048, 4096, 8192) for context in (0, 8192)]
# Sizes for --try.
SMALL = {"heads": 4, "head_dim": 16, "shrink": 64, "slices": [(16, 0), (16, 32), (32, 0), (32, 32)]}


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

    def flops(self, backward):
        """Executed FLOPs as in model/workload/transformer.h (SliceFlops), with only the causal part of attention."""
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        matrices = self.hidden * (width + self.hidden + (3 if self.llama else 2) * self.ffn)
        attention = 4 * self.hidden * self.tokens * (self.context + self.tokens / 2)
        return (2 if backward else 1) * (2 * self.tokens * matrices + attention)


# --- attention -------------------------------------------------------------------------------------------------------


def ways_to_attend(torch, shape):
    """Returns by name functions of queries [1, heads, tokens, d] and keys and values [1, kv_heads, context + tokens, d]."""
    attend = torch.nn.functional.scaled_dot_product_attention
    masks = {}
    if shape.context == 0:
        masks["is_causal"] = lambda device: {"is_causal": True}
    else:

        def lower_right(device):
            from torch.nn.attention.bias import causal_lower_right

            return {"attn_mask": causal_lower_right(shape.tokens, shape.context + shape.tokens)}

        def explicit(device):
            seen = torch.ones(shape.tokens, shape.context + shape.tokens, dtype=torch.bool, device=device)
            return {"attn_mask": seen.tril(shape.context)}

        masks["causal_lower_right"] = lower_right
        masks["mask"] = explicit

    def restricted(backend):
        if backend is None:
            return contextlib.nullcontext()
        from torch.nn.attention import sdpa_kernel

        return sdpa_kernel(backend)

    # All backends but the one that stores all scores.
    try:
        from torch.nn.attention import SDPBackend

        names = [name for name in ("FLASH", "CUDNN", "EFFICIENT") if hasattr(SDPBackend, name + "_ATTENTION")]
        backends = {name.lower(): getattr(SDPBackend, name + "_ATTENTION") for name in names}
    except ImportError:  # before PyTorch 2.3
        backends = {"any": None}

    def way(mask, backend, grouped):
        kept = {}

        def call(queries, keys, values):
            if not kept:
                kept.update(mask(queries.device))
            more = {}
            if shape.kv_heads < shape.heads:
                if grouped:
                    more["enable_gqa"] = True
                else:
                    keys, values = (
                        of.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for of in (keys, values)
                    )
            with restricted(backend):
                return attend(queries, keys, values, **kept, **more)

        return call

    ways = {}
    for mask_name, mask in masks.items():
        for backend_name, backend in backends.items():
            for grouped in (False, True) if shape.kv_heads < shape.heads else (False,):
                name = f"{mask_name}, {backend_name}" + (", enable_gqa" if grouped else "")
                ways[name] = way(mask, backend, grouped)
    return ways


def attention_error(torch, shape, out, queries, keys, values):
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


def best_way_to_attend(torch, clock, shape, device):
    """Returns the fastest correct function and its name. Fails if there is none."""

    def random(heads, tokens):
        out = torch.randn(1, tokens, heads, shape.head_dim, device=device, dtype=torch.bfloat16)
        return out.transpose(1, 2).requires_grad_()

    queries = random(shape.heads, shape.tokens)
    keys, values = (random(shape.kv_heads, shape.context + shape.tokens) for _ in range(2))
    best = None
    reasons = []
    for name, way in ways_to_attend(torch, shape).items():
        try:
            out = way(queries, keys, values)
            gradient = torch.randn_like(out)
            error = attention_error(torch, shape, out.detach(), queries.detach(), keys.detach(), values.detach())
            if not error < 2e-2:
                reasons.append(f"{name}: relative error {error:.2g} against float32")
                continue
            times = []
            for _ in range(6):
                times.append(clock.seconds(lambda: way(queries, keys, values).backward(gradient)))
            took = sorted(times[1:])[2]
        except (RuntimeError, TypeError, ValueError, NotImplementedError, ImportError) as why:
            reasons.append(f"{name}: {str(why).splitlines()[0] if str(why) else type(why).__name__}")
            continue
        if best is None or took < best[0]:
            best = (took, name, way)
    if best is None:
        raise SystemExit("expected a scaled_dot_product_attention with correct results:\n  " + "\n  ".join(reasons))
    return best[2], best[1]


# --- the layer -------------------------------------------------------------------------------------------------------


class Layer:
    """The layer of kernels/cuda/layer.cc: GPT with LayerNorm, biases and tanh GELU, or Llama with RMSNorm, rotary
    embedding and SwiGLU. GEMMs with the same input are fused."""

    def __init__(self, torch, shape, attend, device):
        self.torch = torch
        self.shape = shape
        self.attend = attend

        def random(*sizes):
            return torch.randn(*sizes, device=device).mul_(0.02).to(torch.bfloat16).requires_grad_()

        hidden, ffn = shape.hidden, shape.ffn
        all_heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        wide = 2 * ffn if shape.llama else ffn
        self.weights = {
            "norm1": torch.ones(hidden, device=device, dtype=torch.bfloat16).requires_grad_(),
            "qkv": random(all_heads, hidden),
            "output": random(hidden, hidden),
            "norm2": torch.ones(hidden, device=device, dtype=torch.bfloat16).requires_grad_(),
            "up": random(wide, hidden),
            "down": random(hidden, ffn),
        }
        self.biases = {}
        if not shape.llama:
            sizes = {"norm1": hidden, "qkv": all_heads, "output": hidden, "norm2": hidden, "up": wide, "down": hidden}
            self.biases = {name: random(size) for name, size in sizes.items()}
        if shape.llama:
            half = shape.head_dim // 2
            frequencies = 10000.0 ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
            places = torch.arange(shape.context, shape.context + shape.tokens, device=device, dtype=torch.float64)
            angles = torch.cat([torch.outer(places, frequencies)] * 2, dim=-1)[:, None, :]
            self.cosines, self.sines = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)

    def norm(self, x, name):
        functional = self.torch.nn.functional
        if not self.shape.llama:
            return functional.layer_norm(x, x.shape[-1:], self.weights[name], self.biases[name], 1e-5)
        if hasattr(functional, "rms_norm"):
            return functional.rms_norm(x, x.shape[-1:], self.weights[name], 1e-5)
        wide = x.float()
        root = self.torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return (wide * root).to(x.dtype) * self.weights[name]

    def linear(self, x, name):
        return self.torch.nn.functional.linear(x, self.weights[name], self.biases.get(name))

    def turned(self, x):
        first, second = x.chunk(2, dim=-1)
        return x * self.cosines + self.torch.cat((-second, first), dim=-1) * self.sines

    def __call__(self, x, context_keys, context_values):
        shape, torch = self.shape, self.torch
        qkv = self.linear(self.norm(x, "norm1"), "qkv").view(shape.tokens, -1, shape.head_dim)
        queries, keys, values = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        if shape.llama:
            queries, keys = self.turned(queries), self.turned(keys)
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

    def __init__(self, torch, device):
        self.torch = torch
        self.on_gpu = device.type == "cuda"

    def seconds(self, work):
        if not self.on_gpu:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3


def peak_of(torch, clock, device, side):
    """Best measured FLOP/s of a GEMM of side x side x side."""
    a, b = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / min(clock.seconds(lambda: torch.mm(a, b, out=out)) for _ in range(20))


def times_of(torch, clock, layer, device, repeats):
    """Sorted seconds of each op, after a warm-up."""
    shape = layer.shape

    def random(*sizes, deviation=1.0):
        return torch.randn(*sizes, device=device).mul_(deviation).to(torch.bfloat16)

    x = random(shape.tokens, shape.hidden).requires_grad_()
    sizes = (max(shape.context, 1), shape.kv_heads, shape.head_dim)
    keys, values = (random(*sizes).requires_grad_() for _ in range(2))
    gradient = random(shape.tokens, shape.hidden, deviation=1e-2)
    leaves = [x, *layer.weights.values(), *layer.biases.values()] + ([keys, values] if shape.context else [])
    forward, backward = [], []
    for repeat in range(5 + repeats):
        for leaf in leaves:
            leaf.grad = None
        made = []
        took = clock.seconds(lambda: made.append(layer(x, keys, values)))
        took_backward = clock.seconds(lambda: made[0].backward(gradient))
        if repeat == 0:
            if not all(bool(of.isfinite().all()) for of in (made[0], *(leaf.grad for leaf in leaves))):
                raise SystemExit("not all results of PyTorch's layer are finite")
        if repeat >= 5:
            forward.append(took)
            backward.append(took_backward)
    return {0: sorted(forward), 1: sorted(backward)}


# --- the comparison --------------------------------------------------------------------------------------------------


def sluice_rows(path):
    """Median milliseconds by name from Google Benchmark's JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)["benchmarks"]
    except (OSError, ValueError, KeyError) as why:
        raise SystemExit(f"{path}: expected the rows of device_layer_benchmark: {why}")
    return {row["name"].split("/iterations:")[0]: row["median_ms"] for row in rows if "median_ms" in row}


def compare(rows, ours, share):
    """Prints a line per layer and slice. Returns whether all are fast enough."""
    theirs = {row["name"]: row["median_ms"] for row in rows}
    print(f"\n{'sluice beside PyTorch':44} {'F':>6} {'B':>6} {'F+B':>6}   of PyTorch's speed")
    fine = True
    for name in theirs:
        if not name.endswith("/op:0"):
            continue
        pair = [name, name[:-1] + "1"]
        if any(of not in ours for of in pair):
            print(f"{name[:-5]:44} not timed by sluice")
            fine = False
            continue
        f, b = (theirs[of] / ours[of] for of in pair)
        both = sum(theirs[of] for of in pair) / sum(ours[of] for of in pair)
        fine = fine and both >= share
        print(f"{name[:-5]:44} {f:6.2f} {b:6.2f} {both:6.2f}" + ("" if both >= share else f"   below {share}"))
        for of, speed in zip(pair, (f, b)):
            next(row for row in rows if row["name"] == of)["sluice_of_pytorch"] = speed
        next(row for row in rows if row["name"] == pair[0])["sluice_of_pytorch_forward_and_backward"] = both
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--against", help="JSON file of device_layer_benchmark --benchmark_out to compare with")
    parser.add_argument("--share", type=float, default=0.9, help="required fraction of PyTorch's speed (default 0.9)")
    parser.add_argument("--repeats", type=int, default=20, help="number of timings per row (default 20)")
    parser.add_argument("--try", dest="small", action="store_true", help="run with tiny sizes on the CPU, without meaningful timings")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("nothing timed: PyTorch is not installed")
        return 0
    if not options.small and not torch.cuda.is_available():
        print("nothing timed: PyTorch sees no GPU")
        return 0

    ours = sluice_rows(options.against) if options.against else None
    device = torch.device("cpu" if options.small else "cuda")
    torch.manual_seed(1)
    clock = Clock(torch, device)
    peak = peak_of(torch, clock, device, 64 if options.small else 8192)
    name = "a CPU" if options.small else torch.cuda.get_device_name()
    print(f"{name}, PyTorch {torch.__version__}, bfloat16 GEMM {peak / 1e12:.0f} TFLOP/s")
    rows = []
    for model in MODELS:
        for tokens, context in SMALL["slices"] if options.small else SLICES:
            shape = Shape(model, tokens, context, options.small)
            attend, way = best_way_to_attend(torch, clock, shape, device)
            layer = Layer(torch, shape, attend, device)
            for op, times in times_of(torch, clock, layer, device, options.repeats).items():
                median = times[len(times) // 2]
                rate = shape.flops(op == 1) / median
                rows.append(
                    {
                        "name": f"layer/{model}/tokens:{tokens}/context:{context}/op:{op}",
                        "label": OPS[op],
                        "median_ms": 1e3 * median,
                        "least_ms": 1e3 * times[0],
                        "most_ms": 1e3 * times[-1],
                        "TFLOP/s": rate / 1e12,
                        "of_peak": rate / peak,
                        "attention": way,
                    }
                )
                print(
                    f"{rows[-1]['name']:52} {OPS[op]}  {1e3 * median:8.3f} ms  {rate / 1e12:6.1f} TFLOP/s  "
                    f"{rate / peak:.2f} of the peak  ({way})"
                )
            del layer
    fine = compare(rows, ours, options.share) if options.against else True
    if options.json:
        document = {"device": name, "pytorch": torch.__version__, "peak_TFLOP/s": peak / 1e12, "rows": rows}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
