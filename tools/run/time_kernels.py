#!/usr/bin/env python3
"""Times the GEMMs and attention kernels of a scenario on one GPU. Written by 'sluice profile --like'; needs PyTorch only.

    python3 kernels.py -o kernel_times.json                 # on the GPU
    sluice calibrate kernel_times.json -o kernels.json
    sluice simulate SCENARIO --kernel-times kernels.json

Each kernel is run --warm-up times and then timed --repetitions times with CUDA events; before each of these runs the L2
cache is overwritten. The result is the median. Nothing is written unless all kernels were timed or skipped with a
reason.
"""
import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time

SHAPES = json.loads(r"""
@SHAPES@
""")

FLUSHED_BYTES = 256 << 20  # above the L2 cache of every GPU


class Skipped(RuntimeError):
    """A kernel that cannot be timed here; the text is the reason."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="kernel_times.json", help="file of the times (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the script (default: %(default)s)")
    parser.add_argument("--dtype", choices=["float32"], help="time all kernels in this type instead, to try the script: "
                        "sluice does not use such times (default: the formats of the scenario)")
    parser.add_argument("--repetitions", type=int, default=30, help="timed runs per kernel, at least 1 (default: 30)")
    parser.add_argument("--warm-up", type=int, default=5, help="runs before these, at least 0 (default: 5)")
    options = parser.parse_args()
    if options.repetitions < 1 or options.warm_up < 0:
        parser.error("expected --repetitions of at least 1 and --warm-up of at least 0")
    return options


def describe(shape):
    if shape["kernel"] == "attention":
        prefix = f" after {shape['context']}" if shape["context"] else ""
        size = f"{shape['sequences']} x {shape['tokens']} tokens{prefix}, {shape['heads']} heads of {shape['head_dim']}"
    else:
        batch = f"{shape['batch']} of " if shape["batch"] > 1 else ""
        size = f"{batch}{shape['m']} x {shape['n']} x {shape['k']}"
    return f"{shape['kernel']} {shape['pass'].replace('_', ' ')} {shape['format']} {size}"


class Machine:
    """The device that kernels are timed on."""

    def __init__(self, options):
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        if self.cuda and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.options = options
        if self.cuda:
            torch.cuda.set_device(self.device)
            self.name = torch.cuda.get_device_name(self.device)
            self.library = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
            self.flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=self.device)
        else:
            self.name = str(self.device)
            self.library = f"PyTorch {torch.__version__}"

    def normal(self, *size, dtype):
        return torch.randn(*size, device=self.device).to(dtype)

    def seconds(self, run):
        """The times of the repetitions of `run`."""
        for _ in range(self.options.warm_up):
            run()
        if not self.cuda:
            times = []
            for _ in range(self.options.repetitions):
                start = time.perf_counter()
                run()
                times.append(time.perf_counter() - start)
            return times
        torch.cuda.synchronize()
        events = []
        for _ in range(self.options.repetitions):
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self.flushed.zero_()  # also gives the host time to enqueue the kernel before the GPU needs it
            pair[0].record()
            run()
            pair[1].record()
            events.append(pair)
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]


def type_of(shape, machine):
    if machine.options.dtype:
        return getattr(torch, machine.options.dtype)
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if shape["format"] not in types:
        raise Skipped(f"PyTorch has no stable interface for {shape['format']} with scales per block")
    return types[shape["format"]]


def in_turn(functions):
    def run():
        for function in functions:
            function()
    return functions[0] if len(functions) == 1 else run


def accumulating_gemm(a, b, shape, machine):
    """Adds a x b to a sum, as frameworks add weight gradients."""
    if a.dim() != 2:
        raise Skipped("batches of GEMMs that accumulate are not timed")
    total_type = torch.float32 if shape["accumulate_bytes"] == 4 else a.dtype
    total = torch.zeros(a.shape[0], b.shape[1], dtype=total_type, device=machine.device)
    if total_type == a.dtype:
        return lambda: torch.addmm(total, a, b, out=total)
    if not machine.cuda:
        return lambda: total.add_(torch.matmul(a, b))
    try:
        torch.addmm(total, a, b, out_dtype=total_type, out=total)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise Skipped(f"accumulation in fp32 needs torch.addmm with out_dtype (PyTorch 2.8): {first_line(error)}")
    return lambda: torch.addmm(total, a, b, out_dtype=total_type, out=total)


def gemm(shape, machine, batch):
    """One GEMM, or a batch of equal ones in one kernel."""
    dtype = type_of(shape, machine)
    lead = (batch,) if batch > 1 else ()
    m, n, k = shape["m"], shape["n"], shape["k"]
    normal = lambda rows, columns: machine.normal(*lead, rows, columns, dtype=dtype)
    if shape["pass"] == "forward":  # X W^T
        a, b = normal(m, k), normal(n, k).transpose(-1, -2)
    elif shape["pass"] == "input_gradient":  # dY W
        a, b = normal(m, k), normal(k, n)
    else:  # dY^T X, which is [n, m] like the weights
        a, b = normal(k, n).transpose(-1, -2), normal(k, m)
    if shape["accumulate_bytes"]:
        return accumulating_gemm(a, b, shape, machine)
    out = torch.matmul(a, b)
    return lambda: torch.matmul(a, b, out=out)


def fp8_gemm(shape, machine):
    """One GEMM with a scale per tensor. Its second operand is transposed in every pass, as Hopper needs it."""
    if not machine.cuda:
        raise Skipped("FP8 needs a GPU")
    if torch.cuda.get_device_capability(machine.device) < (8, 9):
        raise Skipped("FP8 needs a GPU of compute capability 8.9 or above")
    if shape["accumulate_bytes"]:
        raise Skipped("torch._scaled_mm does not add to a sum")
    if shape["batch"] > 1 and not shape["grouped"]:
        raise Skipped("torch._scaled_mm has no batches")
    m, n, k = shape["m"], shape["n"], shape["k"]
    if n % 16 or k % 16:
        raise Skipped("torch._scaled_mm needs multiples of 16")
    forward = shape["pass"] == "forward"
    a = machine.normal(m, k, dtype=torch.float8_e4m3fn if forward else torch.float8_e5m2)
    b = machine.normal(n, k, dtype=torch.float8_e4m3fn).t()
    one = torch.ones((), device=machine.device)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=forward)


def gemms(shape, machine):
    fp8 = shape["format"] == "fp8" and not machine.options.dtype
    count = shape["batch"] if shape["grouped"] else 1
    one = (lambda: fp8_gemm(shape, machine)) if fp8 else (
        lambda: gemm(shape, machine, 1 if shape["grouped"] else shape["batch"]))
    return [("", in_turn([one() for _ in range(count)]))]


@contextlib.contextmanager
def backend_of(backend):
    if backend is None:
        yield
    else:
        from torch.nn.attention import sdpa_kernel
        with sdpa_kernel([backend]):
            yield


def attention_inputs(shape, machine):
    dtype = type_of(shape, machine)
    keys = shape["tokens"] + shape["context"]
    tensor = lambda tokens, heads, size: machine.normal(
        shape["sequences"], tokens, heads, size, dtype=dtype).transpose(1, 2).requires_grad_()
    return (tensor(shape["tokens"], shape["heads"], shape["head_dim"]),
            tensor(keys, shape["kv_heads"], shape["head_dim"]),
            tensor(keys, shape["kv_heads"], shape["value_head_dim"]))


def attention_function(shape, inputs):
    settings = {}
    if shape["heads"] != shape["kv_heads"]:
        settings["enable_gqa"] = True
    if shape["context"]:
        from torch.nn.attention.bias import causal_lower_right
        settings["attn_mask"] = causal_lower_right(shape["tokens"], shape["tokens"] + shape["context"])
    else:
        settings["is_causal"] = True
    return lambda: torch.nn.functional.scaled_dot_product_attention(*inputs, **settings)


def attention(shape, machine):
    """The kernel of each backend that has it: the fastest is taken, as frameworks do."""
    inputs = attention_inputs(shape, machine)
    function = attention_function(shape, inputs)
    backends = [("", None)]
    if machine.cuda:
        from torch.nn.attention import SDPBackend
        names = {"cuDNN": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
        backends = [(name, getattr(SDPBackend, key)) for name, key in names.items() if hasattr(SDPBackend, key)]
    found, reasons = [], []
    for name, backend in backends:
        def forward(backend=backend):
            with backend_of(backend), torch.no_grad():
                function()
        try:
            with backend_of(backend):
                output = function()
            gradient = torch.randn_like(output)
            def backward(output=output, gradient=gradient):
                torch.autograd.grad(output, inputs, gradient, retain_graph=True)
            run = forward if shape["pass"] == "forward" else backward
            run()
            found.append((name, run))
        except (RuntimeError, TypeError, ValueError) as error:
            reasons.append(f"{name}: {first_line(error)}" if name else first_line(error))
    if not found:
        raise Skipped("; ".join(reasons))
    return found


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def timed(shape, machine):
    """The row of a shape with its time."""
    kernels = gemms(shape, machine) if shape["kernel"] == "gemm" else attention(shape, machine)
    name, times = min(((name, machine.seconds(run)) for name, run in kernels),
                      key=lambda each: statistics.median(each[1]))
    row = dict(shape, seconds=statistics.median(times), runs=len(times))
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [0, 0, 0]
    row["spread_s"] = (quartiles[2] - quartiles[0]) / 2
    if machine.options.dtype:
        row["format"] = machine.options.dtype
    if name:
        row["backend"] = name
    return row


def time_all(machine):
    rows, skipped = [], []
    for number, shape in enumerate(SHAPES["kernels"], 1):
        text = f"{number}/{len(SHAPES['kernels'])} {describe(shape)}"
        try:
            row = timed(shape, machine)
            rows.append(row)
            predicted = shape.get("predicted_s", 0)
            compared = f", {row['seconds'] / predicted:.2f} of the prediction" if predicted else ""
            print(f"{text}: {1e6 * row['seconds']:.1f} us{compared}", flush=True)
        except RuntimeError as error:  # also from the GPU's libraries: the other kernels are still timed
            reason = "out of memory" if isinstance(error, torch.cuda.OutOfMemoryError) else first_line(error)
            skipped.append(dict(shape, reason=reason))
            print(f"{text}: skipped: {reason}", flush=True)
        if machine.cuda:
            torch.cuda.empty_cache()
    return rows, skipped


def write_whole(path, text):
    """Writes a file under a temporary name and renames it."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".kernel_times")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main():
    options = arguments()
    folder = os.path.dirname(os.path.abspath(options.output))
    if not os.access(folder, os.W_OK):
        sys.exit(f"{options.output}: cannot write into {folder}")
    global torch
    try:
        import torch
    except ImportError as error:
        sys.exit(f"PyTorch is required: {error}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU; --device cpu tries the script on the CPU")
    machine = Machine(options)
    print(f"{machine.name}, {machine.library}", flush=True)
    if SHAPES["gpu"].split("-")[0].upper() not in machine.name.upper():
        print(f"warning: the shapes are of a scenario on {SHAPES['gpu']}: sluice uses the times for that GPU only")
    rows, skipped = time_all(machine)
    if not rows:
        sys.exit("no kernel could be timed; nothing is written")
    document = {"schema": "sluice.kernel_times/1", "gpu": SHAPES["gpu"], "device": machine.name,
                "library": machine.library, "kernels": rows, "skipped": skipped}
    write_whole(options.output, json.dumps(document, indent=1) + "\n")
    print(f"{len(rows)} kernels timed, {len(skipped)} skipped: {options.output}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing is written")
