"""Tests of benchmarks/claims: its measures on a claim with uniform costs and known closed forms, and its errors."""

import json
import pathlib
import subprocess
import sys

import pytest
import sluice

ROOT = pathlib.Path(__file__).parents[2]

# f = b = w = 1 s for 1/4 of the model, 4 ranks, 8 microbatches of one sequence.
UNIFORM = json.loads("""{
  "schema": "sluice.claim/1", "claim": "a claim", "source": "nowhere",
  "scenario": {
    "model": {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512,
              "max_position_embeddings": 128},
    "cluster": "p3.16xlarge",
    "parallelism": {"pp": 4},
    "batch": {"microbatches": 8, "sequence_length": 128},
    "schedule": "1f1b",
    "cost": {"kind": "uniform", "f": 1, "b": 1, "w": 1}
  },
  "runs": {
    "plain": {},
    "interleaved": {"schedule": "interleaved-1f1b", "parallelism": {"vpp": 2}},
    "gpipe": {"schedule": "gpipe"},
    "best": {"fastest_of": [[{"batch": {"microbatches": 4}}, {"batch": {"microbatches": 16}},
                             {"batch": {"microbatches": 8}}]]},
    "cut": {"schedule": "terapipe", "batch": {"microbatches": 1}, "cut": {"granularity": 32}},
    "early": {"schedule": {"name": "seq1f1b", "slice_lengths": [32, 96]}},
    "large": {"model": {"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96}}
  },
  "measures": []
}""")


def claims(*arguments):
    command = [sys.executable, ROOT / "benchmarks" / "claims", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def written(path, claim):
    path.write_text(json.dumps(claim))
    return path


@pytest.fixture
def rows(tmp_path):
    """Returns the rows of measures of the claim."""

    def rows_of(*measures):
        result = claims(written(tmp_path / "claim.json", {**UNIFORM, "measures": measures}), "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["claims"][0]["measures"]

    return rows_of


def measure(kind, of, over=None, **more):
    return {"measure": kind, "of": of, **({"over": over} if over else {}), **more}


def test_times(rows):
    found = rows(
        measure("iteration", "plain"),
        measure("formula_ratio", "plain"),
        measure("speedup", "interleaved", "plain"),
        measure("largest_speedup", ["plain", "interleaved", "gpipe"], ["interleaved", "plain", "plain"]),
        measure("speedup", "best", "plain"),
        measure("best_value", "best", key="/batch/microbatches"),
        measure("op_ratio", "early", "plain", op={"kind": "F", "stage": 1}),
    )
    # (m + p - 1)(f + b + w) = 11 * 3; interleaved (m v + p - 1)(f + b + w) / v = 19 * 3 / 2. Per second and device: of
    # 8 sequences in 33 s, and of 16 in 19 * 3 s. 32 of 128 tokens.
    expected = [33, 1, 33 / 28.5, 33 / 28.5, 16 / 57 / (8 / 33), 16, 0.25]
    assert [row["value"] for row in found] == pytest.approx(expected)
    speedups, slices = rows(measure("speedups", ["interleaved", "gpipe"], ["plain", "plain"]), measure("slices", "cut"))
    assert speedups["value"] == pytest.approx([33 / 28.5, 1])
    assert slices["ours"] == "4 x 32"  # with costs that are linear in the tokens, the finest cut is optimal


def test_work(rows):
    # Sequences, layers, tokens, hidden size, vocabulary; without recomputation.
    layers = 3 * 8 * 8 * (24 * 128 * 64 * 64 + 4 * 128 * 128 * 64)
    tera = (layers + 8 * 6 * 128 * 64 * 512) / 33 / 4 / 1e12
    found = rows(
        measure("model_tflops", "plain"),
        measure("hardware_tflops", "plain"),
        measure("petaflops", "plain"),
        measure("days", "plain", tokens=1e9),
        measure("transfer_ratio", "interleaved", "plain"),
        measure("transfer_rate", "plain"),
    )
    # 8 * 128 tokens in 33 s. 128 tokens of 64 elements of 2 bytes over 3 transfers, in both directions, 8 times; 7
    # transfers instead of 3 with two chunks per rank.
    rate = 128 * 64 * 2 * 3 * 2 * 8 / 33 / 1e9
    expected = [tera, tera, tera * 4 / 1e3, 1e9 / (1024 / 33) / 86400, 7 / 3, rate]
    assert [row["value"] for row in found] == pytest.approx(expected, rel=1e-12)


def test_memory(rows):
    ratio, order, large, plain, iteration = rows(
        measure("memory_ratio", "gpipe", "plain"),
        measure("order", ["large", "gpipe", "plain"], by="memory", published=["plain", "large", "gpipe"]),
        measure("fits", "large", published=True),
        measure("fits", "plain", published=True),
        measure("iteration", "large"),
    )
    assert ratio["value"] > 1  # 1F1B's first rank holds 4 of 8 microbatches, gpipe's all of them
    assert order["ours"] == "plain < gpipe < large" and order["difference"] == "differs"
    # 96 layers of 12 h^2 parameters, 16 bytes and more each, on 4 GPUs of 16 GiB.
    assert (large["value"], large["difference"], plain["difference"]) == (False, "differs", "as published")
    assert iteration["fits"] is False


def test_differences(rows):
    cases = ((30, "+10.0 %"), (0, "differs"), ([30, 35], "as published"), ([22, 30], "+10.0 %"),
             ({"at_least": 33}, "as published"), ({"at_least": 66}, "-50.0 %"), ({"at_most": 30}, "+10.0 %"))
    found = rows(*(measure("iteration", "plain", published=published) for published, _ in cases))
    assert [row["difference"] for row in found] == [expected for _, expected in cases]
    cases = (("falls", "as published"), ("rises", "differs"), ([33 / 28.5, 2], "+0.0 %, -50.0 %"))
    pairs = (["interleaved", "gpipe"], ["plain", "plain"])
    found = rows(*(measure("speedups", *pairs, published=published) for published, _ in cases))
    assert [row["difference"] for row in found] == [expected for _, expected in cases]
    (unknown,) = rows(measure("iteration", "plain"))
    assert "published" not in unknown and "difference" not in unknown


def test_the_table(tmp_path):
    speedup = measure("speedup", "gpipe", "plain", published=1.25)
    measures = [speedup, measure("iteration", "large", name="the large one")]
    written(tmp_path / "some-claim.json", {**UNIFORM, "why": "because", "assumed": "nothing", "measures": measures})
    assert claims(tmp_path).stdout == (
        "some-claim: a claim\n"
        "  gpipe          speedup    published 1.25       ours 1       -20.0 %\n"
        "  the large one  iteration  published -          ours 33 s *\n"
        "\n"
        "* a run does not fit in memory as predicted\n"
    )
    explained = claims(tmp_path, "--explain").stdout
    assert "  from: nowhere\n  assumed: nothing\n" in explained and "  why: because\n" in explained


def test_written_scenarios_have_the_same_prediction(tmp_path):
    written(tmp_path / "model.json", UNIFORM["scenario"]["model"])
    runs = {name: run for name, run in UNIFORM["runs"].items() if name != "large"}
    scenario = {**UNIFORM["scenario"], "model": "model.json"}
    claim = {**UNIFORM, "scenario": scenario, "runs": runs, "measures": [measure("iteration", "best")]}
    result = claims(written(tmp_path / "some.json", claim), "--write-scenarios", tmp_path / "runs")
    assert result.returncode == 0, result.stderr
    assert sluice.simulate(tmp_path / "runs" / "some--best.json").makespan_s == pytest.approx(57)


ONE = measure("iteration", "plain")


@pytest.mark.parametrize("change, error", [
    ({"schema": "sluice.claim/2"}, '/schema: expected "sluice.claim/1", got "sluice.claim/2"'),
    ({"source": None}, "/source: required key is missing"),
    ({"asumed": "x"}, "/asumed: unknown key; did you mean 'assumed'?"),
    ({"measures": []}, "/measures: expected at least one measure, got []"),
    ({"measures": [measure("sped", "plain")]}, "/measures/0/measure: expected one of speedup, "),
    ({"measures": [measure("iteration", "plian")]},
     "/measures/0/of: expected the name of a run, got \"plian\"; did you mean 'plain'?"),
    ({"measures": [measure("speedup", "plain")]}, "/measures/0/over: required key is missing"),
    ({"measures": [measure("iteration", "plain", "gpipe")]}, "/measures/0/over: unknown key"),
    ({"measures": [measure("speedups", ["plain"], ["plain", "gpipe"])]},
     '/measures/0/over: expected 1 runs, as in of, got ["plain","gpipe"]'),
    ({"measures": [measure("fits", "plain", published=1)]}, "/measures/0/published: expected true or false, got 1"),
    ({"measures": [{**ONE, "published": [3, 2]}]},
     "/measures/0/published: expected the lower end of the range first, got [3,2]"),
    ({"measures": [measure("best_value", "plain", key="batch")]},
     '/measures/0/key: expected a place in the scenario, such as /batch/micro_batch, got "batch"'),
    ({"measures": [measure("order", ["plain", "gpipe"], by="time", published=["plain"])]},
     '/measures/0/published: expected each run of `of` once, got ["plain"]'),
    ({"runs": {"plain": {}, "gpipe": {"fastest_of": [[]]}}},
     "/runs/gpipe/fastest_of/0: expected at least one change, got []"),
    # Errors in the scenario of a run name the run.
    ({"runs": {"plain": {}, "cut": {"cut": {"granularity": 129}}}},
     "run \"cut\": /cut/granularity: expected at most the sequence's 128 tokens, got 129"),
    ({"runs": {"plain": {}, "gpipe": {"batch": {"microbatch": 3}}}},
     "run \"gpipe\": /batch/microbatch: unknown key; did you mean 'micro_batch'?"),
    ({"measures": [measure("best_value", "plain", key="/batch/global_batch")]},
     'measure "plain": the scenario of run "plain" has no /batch/global_batch'),
    ({"measures": [measure("op_ratio", "plain", "gpipe", op={"kind": "F", "stage": 4})]},
     'run "plain": op: expected one of 4 stages, counted from 0, got 4'),
])
def test_errors(tmp_path, change, error):
    path = written(tmp_path / "claim.json", {**UNIFORM, "measures": [ONE], **change})
    result = claims(path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"claims: {path}: {error}")


def test_missing_files_and_unknown_flags(tmp_path):
    assert claims(tmp_path / "none.json").returncode == 2
    assert claims("--jsno").returncode == 2


def test_the_claims_of_all_papers():
    result = claims("--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["claims"]
    assert len(found) == len(list((ROOT / "examples" / "claims").glob("*.json")))
    assert all(claim["measures"] and claim["why"] for claim in found)
