"""Models of PyTorch modules on fake tensors, compared with our own blocks. Needs PyTorch, no GPU and no weights."""

import json

import pytest
import sluice

torch = pytest.importorskip("torch", reason="SKIPPED: PyTorch is not installed: tests/pytorch/install.sh installs it")

import sluice.torch  # noqa: E402
import traced_modules as modules  # noqa: E402
from torch import nn  # noqa: E402

TRAINING = {"cluster": "dgx-h100", "pp": 2, "dp": 4, "gbs": 32}
LLAMA = [{"block": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128}, {"block": "mlp", "width": 14336}]
EXPERTS = [
    {"block": "attention", "heads": 32, "kv_heads": 4, "head_dim": 128, "qk_norm": "per_head"},
    {"block": "experts", "count": 128, "per_token": 8, "width": 768},
]
MAMBA = [{"block": "mamba2", "heads": 64, "head_dim": 64, "state": 128, "groups": 8}]
# Per token, with chunks of 256: H (4 N P + 2 C P) + 2 C G N (model/blocks/scan.h).
SCAN_FLOPS = 64 * (4 * 128 * 64 + 2 * 256 * 64) + 2 * 256 * 8 * 128


def own(block, layers, hidden, vocab):
    return {"name": "own", "hidden_size": hidden, "vocab_size": vocab, "kinds": {"layer": block},
            "layers": [{"repeat": layers, "layers": ["layer"]}]}  # fmt: skip


def tokens(length, batch=1):
    return torch.zeros(batch, length, dtype=torch.long, device="meta")


def scan_flops(x, *_):
    return x.shape[0] * x.shape[1] * SCAN_FLOPS


MAMBA_KERNELS = {
    "traced_test::convolution": sluice.torch.Kernel(lambda *_: 0, 1),
    "traced_test::convolution_backward": sluice.torch.Kernel(lambda *_: 0, 1),
    "traced_test::scan": sluice.torch.Kernel(scan_flops, 0.12, state=4 * 64 * 64 * 128),
    "traced_test::scan_backward": sluice.torch.Kernel(lambda *args: 2.5 * scan_flops(*args), 0.12),
}


def compare(traced, ours, length, same_mfu_rule=True, **keys):
    """Asserts that FLOPs are equal, times within 5 % and memory within 3 %, and prints the differences."""
    scenario = {**TRAINING, "seq_length": length, **keys}
    a = sluice.simulate(sluice.Scenario(model=traced, **scenario))
    b = sluice.simulate(sluice.Scenario(model=ours, **scenario))
    flops = a.mfu * a.iteration_s / (b.mfu * b.iteration_s) - 1
    time = a.iteration_s / b.iteration_s - 1
    memory = a.peak_memory_bytes / b.peak_memory_bytes - 1
    print(f"{traced['name']}: FLOPs {flops:+.2%}, time {time:+.2%}, memory {memory.min():+.2%} to {memory.max():+.2%}")
    if same_mfu_rule:
        assert abs(flops) < 1e-9
    assert abs(time) < 0.05
    assert abs(memory).max() < 0.03


def gemm_elements(block):
    return sum(op.get("rows", 1) * op["k"] * op["n"] for op in block["ops"] if op["op"] == "gemm")


@pytest.fixture(scope="module")
def llama():
    return sluice.torch.model(modules.llama(4), tokens(8192), name="Llama 3 8B")


def test_llama_is_like_our_blocks(llama):
    assert llama["layers"] == [{"repeat": 4, "layers": ["layer"]}]
    (block,) = llama["kinds"]["layer"]
    assert block["parameters"]["all"] == 218112000  # (8,030,261,248 - 2 x 128,256 x 4,096 - 4,096) / 32
    assert (llama["hidden_size"], llama["vocab_size"], llama["tied_embeddings"]) == (4096, 128256, False)
    compare(llama, own(LLAMA, 4, 4096, 128256), 8192)


def test_mamba_is_like_our_block():
    traced = sluice.torch.model(modules.mamba(2), tokens(8192), name="Mamba-2", kernels=MAMBA_KERNELS)
    (block,) = traced["kinds"]["layer"]
    assert gemm_elements(block) == 2688 * (2 * 4096 + 2 * 1024 + 64) + 4096 * 2688
    assert sum(op["flops"] for op in block["ops"] if op["op"] == "scan") == SCAN_FLOPS
    # Megatron-LM's rule for MFU counts other FLOPs than run.
    compare(traced, own(MAMBA, 2, 2688, 131072), 8192, same_mfu_rule=False)


def test_experts_are_like_our_blocks():
    traced = sluice.torch.model(modules.qwen_experts(2), tokens(4096), name="Qwen3 experts")
    (block,) = traced["kinds"]["layer"]
    assert block["parameters"]["routed"] == 128 * 3 * 2048 * 768
    compare(traced, own(EXPERTS, 2, 2048, 151936), 4096)


def test_a_model_is_planned_cut_and_saved(llama, tmp_path):
    scenario = sluice.Scenario(model=llama, cluster="dgx-h100", gbs=32, seq_length=8192)
    plan = sluice.plan(scenario, gpus=8, refine=False)
    assert {row["tp"] for row in plan.rows} == {1}  # it is traced on one device
    cut = sluice.slice(scenario.replace(pp=2), balanced=True, slices=4)
    assert sum(cut.lengths) == 8192 and cut.lengths[0] > cut.lengths[-1]  # attention of later slices is longer
    llama.write(tmp_path / "llama.json")
    keys = {**TRAINING, "pp": 1, "seq_length": 8192}
    saved = sluice.simulate(sluice.Scenario(model=str(tmp_path / "llama.json"), **keys))
    assert saved.iteration_s == sluice.simulate(sluice.Scenario(model=llama, **keys)).iteration_s
    with pytest.raises(sluice.InputError, match="tensor-parallel size of 1, got 2"):
        sluice.simulate(sluice.Scenario(model=llama, **{**keys, "tp": 2, "dp": 2}))


def test_a_module_sharded_by_dtensor():
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        module = modules.llama(2)
        columns = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
        rows = ("attention.wo", "feed_forward.w2")
        for layer in module.layers:
            styles = {each: ColwiseParallel() for each in columns}
            parallelize_module(layer, mesh, {**styles, **{each: RowwiseParallel() for each in rows}})
        ends = {
            "words": RowwiseParallel(input_layouts=Replicate()),
            "output": ColwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(module, mesh, ends)
        traced = sluice.torch.model(module, tokens(4096), name="Llama 3 8B, tp 2", tp=2)
    finally:
        dist.destroy_process_group()
    (block,) = traced["kinds"]["layer"]
    assert traced["vocab_size"] == 128256
    assert {op["n"] for op in block["ops"] if op["op"] == "gemm"} == {2048, 512, 4096, 7168}  # shards of one rank
    assert block["parameters"]["replicated"] == 2 * 4096
    assert sum(op.get("forward", 0) for op in block["ops"] if op["op"] == "all_reduce") == 2 * 2 * 4096
    # PyTorch reduces the gradient of the input of every column-parallel layer, we once for those with the same input.
    assert sum(op.get("backward", 0) for op in block["ops"] if op["op"] == "all_reduce") == 5 * 2 * 4096
    compare(traced, own(LLAMA, 2, 4096, 128256), 4096, pp=1, tp=2, dp=4)


class Gpt(nn.Module):
    """Learned positions and a tied head; the layers are `layers`."""

    def __init__(self, *layers, hidden=64):
        super().__init__()
        self.words = nn.Embedding(1000, hidden)
        self.positions = nn.Embedding(512, hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(hidden)
        self.output = nn.Linear(hidden, 1000, bias=False)
        self.output.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


def mlp():
    return Residual(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))


def test_kinds_of_layers_positions_and_tied_heads():
    traced = sluice.torch.model(Gpt(mlp(), mlp(), Residual(nn.Linear(64, 64)), mlp()), tokens(128, batch=2))
    assert traced["tied_embeddings"] and not traced["rms_norm"]
    # The first layer has the learned positions.
    assert traced["layers"] == [{"repeat": 1, "layers": [each]} for each in ("layer", "layer 2", "layer 3", "layer 2")]
    parameters = [traced["kinds"][each][0]["parameters"]["all"] for each in ("layer", "layer 2", "layer 3")]
    one = 2 * 64 * 256 + 256 + 64 + 2 * 64
    assert parameters == [one + 512 * 64, one, 64 * 64 + 64]
    assert sluice.simulate(model=traced, cluster="dgx-h100", pp=4, gbs=8, seq_length=128).iteration_s > 0


def test_layers_of_pytorch_with_dropout():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(1000, 64)
            layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, tokens):
            x = self.words(tokens)
            return self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)

    traced = sluice.torch.model(Encoder(), tokens(128, batch=2))
    assert traced["layers"] == [{"repeat": 2, "layers": ["layer"]}]
    (block,) = traced["kinds"]["layer"]
    assert gemm_elements(block) == 12 * 64 * 64
    assert [op["heads"] for op in block["ops"] if op["op"] == "attention"] == [4]
    # Masks of a byte per element, as on GPUs: after attention and after the MLP.
    sizes = {tensor["name"]: tensor["bytes"] for tensor in block["tensors"]}
    assert sizes["output of dropout1"] == sizes["output of dropout2"] == 64


class Loop(nn.Module):
    def forward(self, x):
        return torch.cat([part * 2 for part in x.split(32, dim=1)], dim=1)


class Scores(nn.Module):
    """Attention by GEMMs."""

    def forward(self, x):
        return torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x


class Routed(nn.Module):
    def forward(self, x):
        return x[torch.nonzero(x.sum(-1)).unbind(-1)].sum() + x


class Full(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(*(x.unflatten(-1, (2, -1)).transpose(1, 2),) * 3).sum() + x


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.Conv1d(128, 128, 3, padding=1), "aten::convolution at layers.0: unknown op: only depthwise"),
        (None, None),
        (Loop(), "loops over tokens"),
        (Scores(), "aten::bmm at layers.0: .* use scaled_dot_product_attention"),
        (Routed(), "aten::nonzero at layers.0: shapes depend on data; .* grouped GEMMs"),
        (Full(), "scaled_dot_product_attention at layers.0: expected is_causal"),
        (Checkpointed(), "layers.0: the backward has 2.5 times the GEMMs .* without activation checkpointing"),
    ],
)
def test_errors_name_the_op_and_the_module(layer, text):
    if text is None:

        class Unknown(nn.Module):
            def __init__(self):
                super().__init__()
                self.taps = nn.Parameter(torch.empty(64, 4))

            def forward(self, x):
                return modules.convolution(x, self.taps, self.taps)

        layer = Unknown()
        text = r'traced_test::convolution at layers.0: unknown op; give its cost as kernels=\{"traced_test::conv'
    with pytest.raises(sluice.InputError, match=text):
        sluice.torch.model(Gpt(layer), tokens(128))


def test_windows_are_declared():
    module = modules.llama(1)
    traced = sluice.torch.model(module, tokens(256), windows={"layers.0": 128})
    (attention,) = [op for op in traced["kinds"]["layer"][0]["ops"] if op["op"] == "attention"]
    assert attention["window"] == 128
    assert json.loads(traced.to_json()) == traced
