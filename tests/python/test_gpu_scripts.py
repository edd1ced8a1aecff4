"""The scripts that tools/gpu_check.sh runs beside PyTorch, without a GPU and without timings: how they judge."""

import importlib.util
import json
import sys

import pytest


@pytest.fixture
def layers(source, monkeypatch):
    """pytorch_layer.py with layers that take no time."""
    spec = importlib.util.spec_from_file_location("pytorch_layer", source / "benchmarks/kernels/pytorch_layer.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    if script.torch is None:
        pytest.skip("SKIPPED: PyTorch is not installed: tests/pytorch/install.sh installs it")
    monkeypatch.setattr(script, "peak_of", lambda clock, device, side: 1e12)
    return script


def run(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["pytorch_layer.py", "--try", *arguments])
    return script.main()


# A clock that only the layers advance, by one second each: the second would end after 1.5 seconds.
def test_layers_without_time_are_left_out(layers, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(layers.time, "monotonic", lambda: now[0])

    def compare(options, clock, shape, model, device, peak, rows):
        now[0] += 1
        rows.append({"name": model})
        return True

    monkeypatch.setattr(layers, "compare_layer", compare)
    assert run(layers, monkeypatch, "--seconds", "1.5") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "left out, for lack of time: llama_8_kv_heads, 16 tokens after 32"
    assert run(layers, monkeypatch, "--seconds", "-1") == 1
    assert "nothing compared in -1 s" in capsys.readouterr().err
    monkeypatch.setattr(layers, "compare_layer", lambda *arguments: compare(*arguments) and False)
    assert run(layers, monkeypatch) == 1
    assert "slower than required, or not timed by sluice: gpt, 16 tokens after 0" in capsys.readouterr().out


class TimesOfPyTorch:
    """A TimedLayer that takes 1 s for each op."""

    def __init__(self, clock, shape, device):
        self.attention, self.why_not = "is_causal, any", {}

    def measure(self, repeats, into):
        for key in ((0, "eager"), (1, "eager"), (1, "eager, bfloat16 gradients"), (3, "mm, add_")):
            into.setdefault(key, []).append(1.0)


# A benchmark of sluice whose ops take as long as the test says, by the model of the row.
def benchmark(folder, milliseconds):
    rows = [
        {"name": f"layer/{model}/tokens:16/context:{context}/op:{op}/iterations:20", "median_ms": time, "label": label}
        for model, (time, label) in milliseconds.items()
        for context in (0, 32)
        for op in (0, 1, 3)
    ]
    program = folder / "layers"
    program.write_text(f"""#!{sys.executable}
import json, re, sys
flags = dict(of.split("=", 1) for of in sys.argv[1:])
rows = [row for row in {rows!r} if re.search(flags["--benchmark_filter"], row["name"])]
json.dump({{"benchmarks": rows}}, open(flags["--benchmark_out"], "w"))
""")
    program.chmod(0o755)
    return str(program)


# Relative to PyTorch, GPT has half the speed without cuDNN and twice with it; Llama has the same speed, and half of it
# with cuDNN. The faster one counts.
def test_the_cudnner_libraries_are_judged(layers, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(layers, "TimedLayer", TimesOfPyTorch)
    milliseconds = {
        "gpt": (2000, "F"),
        "gpt_cudnn": (500, "F"),
        "llama_8_kv_heads": (1000, "F"),
        "llama_8_kv_heads_cudnn": (2000, "F, cuDNN not found, libcudnn.so.9"),
    }
    results = tmp_path / "rows.json"
    assert run(layers, monkeypatch, "--sluice-layers", benchmark(tmp_path, milliseconds), "--json", str(results)) == 0
    out = capsys.readouterr().out
    assert "layer/gpt/tokens:16/context:0 has 0.50 of PyTorch's speed for F+B and 0.50 for W\n" in out
    assert "layer/gpt_cudnn/tokens:16/context:0 has 2.00 of PyTorch's speed for F+B and 2.00 for W (the faster one)\n" in out
    llama = "layer/llama_8_kv_heads/tokens:16/context:32"
    assert f"{llama} has 1.00 of PyTorch's speed for F+B and 1.00 for W (the faster one)\n" in out
    assert "  llama_8_kv_heads_cudnn: cuDNN not found, libcudnn.so.9\n" in out
    rows = {row["name"]: row for row in json.loads(results.read_text())["rows"]}
    assert len(rows) == 2 * 2 * 3
    assert rows["layer/gpt_cudnn/tokens:16/context:0/op:1"]["sluice_of_pytorch"] == 2
    assert rows["layer/llama_8_kv_heads_cudnn/tokens:16/context:32/op:0"]["notes"] == ["cuDNN not found, libcudnn.so.9"]

    milliseconds["llama_8_kv_heads"] = (1100, "F")
    assert run(layers, monkeypatch, "--sluice-layers", benchmark(tmp_path, milliseconds)) == 1
    assert "0.91 for W (the faster one): below 1.0\n" in capsys.readouterr().out

    del milliseconds["gpt_cudnn"]
    assert run(layers, monkeypatch, "--sluice-layers", benchmark(tmp_path, milliseconds)) == 1
    assert "layer/gpt_cudnn/tokens:16/context:0: not timed by sluice\n" in capsys.readouterr().out
