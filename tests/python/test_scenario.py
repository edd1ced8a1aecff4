import importlib.util
import json
import os
import pickle
import subprocess
import sys

import pytest
import sluice

LLAMA = dict(model="llama3-8b", cluster="dgx-h100", pp=4, tp=2, gbs=64, seq_length=8192)
MEGATRON = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --pipeline-model-parallel-size 4 --vocab-size 51200 --bf16"
)


def test_keywords_are_the_keys_of_a_scenario():
    scenario = sluice.Scenario(**LLAMA)
    assert scenario.to_dict() == {
        "model": "llama3-8b",
        "cluster": {"name": "dgx-h100"},
        "parallelism": {"pp": 4, "tp": 2},
        "batch": {"global_batch": 64, "sequence_length": 8192},
    }
    assert scenario.replace(pp=2).to_dict()["parallelism"] == {"pp": 2, "tp": 2}
    assert scenario.to_dict()["parallelism"]["pp"] == 4, "replace must not change the original"


def test_a_file_a_dictionary_and_json_are_the_same(source, tmp_path):
    path = source / "examples" / "gpt3-175b-a100.json"
    by_file = sluice.simulate(path)
    document = json.loads(path.read_text())
    document["model"] = str(path.parent / document["model"])  # relative to the file, which a dictionary does not have
    assert sluice.simulate(document).iteration_s == by_file.iteration_s
    text = sluice.Scenario(path).to_json()
    assert sluice.simulate(sluice.Scenario.from_json(text, path.parent)).iteration_s == by_file.iteration_s
    (tmp_path / "saved.json").write_text(sluice.Scenario(document).to_json())
    assert sluice.simulate(tmp_path / "saved.json").iteration_s == by_file.iteration_s


def test_model_may_be_a_configuration_of_hugging_face(source):
    config = json.loads((source / "examples/models/llama3-8b/config.json").read_text())
    keys = {**LLAMA, "model": config}
    assert sluice.simulate(**keys).iteration_s == sluice.simulate(**LLAMA).iteration_s


def test_arguments_of_megatron():
    scenario = sluice.Scenario.from_megatron(MEGATRON, cluster="dgx-h100", nodes=1)
    assert scenario.to_dict()["parallelism"]["gpus"] == 8, "all GPUs of the cluster, as the launcher uses"
    assert sluice.simulate(scenario).schedule.num_ranks == 4
    words = sluice.Scenario.from_megatron(MEGATRON.split(), cluster="dgx-h100", nodes=1)
    assert words == scenario
    other = sluice.Scenario.from_megatron(MEGATRON.replace("-size 64", "-size 32"), cluster="dgx-h100", nodes=1)
    assert other.to_dict()["batch"]["global_batch"] == 32, "a second text is not the first one"
    with pytest.raises(sluice.InputError, match="number of GPUs is not known"):
        sluice.simulate(sluice.Scenario.from_megatron(MEGATRON))


def test_toml_of_torchtitan_is_read_again_after_a_change(tmp_path):
    path = tmp_path / "job.toml"
    text = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 8192
[parallelism]
pipeline_parallel_degree = 4
"""
    path.write_text(text)
    assert sluice.Scenario(path, cluster="dgx-h100", nodes=1).to_dict()["parallelism"]["pp"] == 4
    path.write_text(text.replace("degree = 4", "degree = 2"))
    assert sluice.Scenario(path, cluster="dgx-h100", nodes=1).to_dict()["parallelism"]["pp"] == 2


def test_errors_have_the_texts_of_the_command(tmp_path):
    with pytest.raises(sluice.InputError, match=r"^--pp: expected a whole number from 1 to 8192, got -1$"):
        sluice.simulate(pp=-1, microbatches=4)
    path = tmp_path / "wrong.json"
    path.write_text('{"parallelism": {"pp": "four"}}')
    with pytest.raises(sluice.InputError, match=r"wrong.json: /parallelism/pp: expected"):
        sluice.simulate(path)
    with pytest.raises(ValueError):  # InputError is one
        sluice.simulate(schedule="1f2b", pp=2, microbatches=2)
    with pytest.raises(TypeError, match=r"unexpected keyword 'microbatch' \(did you mean 'microbatches'\?\)"):
        sluice.Scenario(microbatch=4)
    with pytest.raises(sluice.InputError, match="uniform: expected times"):
        sluice.Scenario(uniform="f=one")


def test_uniform_times_stragglers_and_links():
    keys = dict(pp=4, microbatches=8)
    by_text = sluice.simulate(uniform="f=1,b=1,w=1,comm=0.5", **keys)
    assert by_text.makespan_s == sluice.simulate(uniform={"f": 1, "b": 1, "w": 1, "comm": 0.5}, **keys).makespan_s
    slow = sluice.simulate(slow_rank={1: 2.0}, **keys)
    assert slow.busy_s[1] == 2 * slow.busy_s[0]
    link = sluice.simulate(uniform="f=1,b=1,w=1,comm=0.5", slow_link={(0, 1): 3.0}, **keys)
    assert link.makespan_s > by_text.makespan_s


def test_scenarios_pickle(source):
    scenario = sluice.Scenario(source / "examples" / "gpt3-175b-a100.json", mbs=2)
    again = pickle.loads(pickle.dumps(scenario))
    assert again == scenario
    assert sluice.simulate(again).iteration_s == sluice.simulate(scenario).iteration_s


def test_types_of_keywords_are_those_of_the_flags(source):
    spec = importlib.util.spec_from_file_location("write_keys", source / "python" / "write_keys.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (source / "python/sluice/_keys.py").read_text() == module.text(), "run python/write_keys.py"


def test_the_module_needs_no_other_program():
    code = "import sluice; print(sluice.simulate(pp=2, microbatches=4).makespan_s)"
    environment = {"PATH": "", **{key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "15.0"  # (4 + 2 - 1) x 3 s
