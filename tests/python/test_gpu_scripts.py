"""The scripts that tools/gpu_check.sh runs beside PyTorch, without a GPU and without timings: how they judge."""

import importlib.util
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


# A clock that only the layers advance, by one second each: two of them end within 2.5 seconds.
def test_layers_without_time_are_left_out(layers, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(layers.time, "monotonic", lambda: now[0])

    def compare(options, clock, shape, model, device, peak, rows):
        now[0] += 1
        rows.append({"name": model})
        return True

    monkeypatch.setattr(layers, "compare_layer", compare)
    assert run(layers, monkeypatch, "--seconds", "2.5") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("left out, for lack of time: ")
    assert run(layers, monkeypatch, "--seconds", "-1") == 1
    assert "nothing compared in -1 s" in capsys.readouterr().err
    monkeypatch.setattr(layers, "compare_layer", lambda *arguments: compare(*arguments) and False)
    assert run(layers, monkeypatch) == 1
    assert "slower than required, or not timed by sluice: gpt, 16 tokens after 0" in capsys.readouterr().out
