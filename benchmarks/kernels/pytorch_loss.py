#!/usr/bin/env python3
"""Compares the losses of a run of sluice with those of the same GPT trained by PyTorch from the same checkpoint and data.

    sluice run --backend cuda --devices stream:2 --precision bf16 --data TEXT --steps 1 --checkpoint start.safetensors
    sluice run --backend cuda --devices stream:2 --precision bf16 --data TEXT --steps 200 \
        --resume start.safetensors --json > run.json
    pytorch_loss.py --checkpoint start.safetensors --run run.json --data TEXT

Supports GPTs with learned positions, LayerNorm, GELU and a tied head, such as the built-in model of `sluice run`. The
checkpoint (docs/formats.md) contains weights, Adam moments, seed and number of finished steps. Prints the largest
difference of the losses, and exits with 1 if it is above --tolerance. With --numpy, computes only the first loss in
float64, without PyTorch.
"""

import argparse
import json
import math
import sys

import numpy as np

EPSILON = 1e-5  # of norms: kernels/cuda/elementwise.h
BETA1, BETA2, ADAM_EPSILON = 0.9, 0.95, 1e-8  # kernels/stage.h, OptimizerStep
ALL_BITS = (1 << 64) - 1


# --- files of sluice ------------------------------------------------------------------------------------------------


def read_checkpoint(path):
    """Returns tensors by name, as numpy arrays, and the metadata of a safetensors file."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = file.read()
    metadata = header.pop("__metadata__")
    if metadata.get("schema") not in ("sluice.checkpoint/1", "sluice.checkpoint/2"):
        raise SystemExit(f"{path}: expected the schema sluice.checkpoint/2, got {metadata.get('schema')}")
    if metadata.get("optimizer") != "adam":
        raise SystemExit(f"{path}: expected a run with adam, got {metadata.get('optimizer')}")
    types = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
    tensors = {}
    for name, of in header.items():
        begin, end = of["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], types[of["dtype"]]).reshape(of["shape"])
    return tensors, metadata


def mixed(x):
    """The finalizer of SplitMix64, as in exec/run/token_source.cc."""
    x = (x + 0x9E3779B97F4A7C15) & ALL_BITS
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & ALL_BITS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & ALL_BITS
    return x ^ (x >> 31)


def sample_begin(seed, step, sequence, places):
    """Returns the position in the text of a sample. TokenSource::fill mixes (seed, step, index in the batch) into 64 bits, and
    takes the high word of their product with the number of windows."""
    return mixed(mixed(mixed(mixed(seed) ^ step)) ^ sequence) * places >> 64


def batch_of(text, metadata, step):
    """Returns tokens and targets of a step (from 0), each [sequences, tokens]."""
    length = int(metadata["sequence_length"])
    places = len(text) - length
    rows = []
    for sequence in range(int(metadata["sequences_per_step"])):
        begin = sample_begin(int(metadata["seed"]), step, sequence, places)
        rows.append(text[begin : begin + length + 1])
    windows = np.stack(rows).astype(np.int64)
    return windows[:, :-1], windows[:, 1:]


def count_layers(tensors):
    return 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))


def check_is_gpt(tensors, heads):
    for name in ("embedding.position.weight", "layers.0.norm1.bias", "layers.0.attention.query.bias"):
        if name not in tensors:
            raise SystemExit(f"expected a checkpoint of a GPT with learned positions and biases: it has no {name}")
    if "head.weight" in tensors or "layers.0.mlp.gate.weight" in tensors:
        raise SystemExit("expected a checkpoint of a GPT with a tied head and GELU")
    hidden = tensors["embedding.word.weight"].shape[1]
    if tensors["layers.0.attention.key.weight"].shape != (hidden, hidden) or hidden % heads != 0:
        raise SystemExit(f"expected {heads} heads with separate keys and a hidden size of {hidden}")


# --- the model in numpy ----------------------------------------------------------------------------------------------


def loss_by_numpy(tensors, heads, tokens, targets):
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    batch, length = tokens.shape

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        root = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return centred / root * weights[name + ".weight"] + weights[name + ".bias"]

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def split(x):
        return x.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)

    seen = np.tril(np.ones((length, length), bool))
    x = weights["embedding.word.weight"][tokens] + weights["embedding.position.weight"][:length]
    for layer in range(count_layers(tensors)):
        at = f"layers.{layer}."
        normed = norm(x, at + "norm1")
        queries, keys, values = (split(linear(normed, f"{at}attention.{of}")) for of in ("query", "key", "value"))
        scores = queries @ keys.transpose(0, 1, 3, 2) / math.sqrt(queries.shape[-1])
        scores = np.where(seen, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = (shares @ values).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + linear(attended, at + "attention.output")
        up = linear(norm(x, at + "norm2"), at + "mlp.up")
        gelu = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = x + linear(gelu, at + "mlp.down")
    logits = norm(x, "final_norm") @ weights["embedding.word.weight"].T
    highest = logits.max(-1, keepdims=True)
    log_sums = highest[..., 0] + np.log(np.exp(logits - highest).sum(-1))
    return float((log_sums - np.take_along_axis(logits, targets[..., None], -1)[..., 0]).mean())


# --- the model in PyTorch --------------------------------------------------------------------------------------------


def loss_by_torch(torch, weights, master, heads, tokens, targets):
    """`weights` are `master` in the compute type; the loss is float32. The gradients of embeddings are accumulated
    in float32, as sluice does: rows of them are read from `master`."""
    functional = torch.nn.functional
    batch, length = tokens.shape

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], EPSILON)

    def linear(x, name):
        return functional.linear(x, weights[name + ".weight"], weights[name + ".bias"])

    def split(x):
        return x.view(batch, length, heads, -1).transpose(1, 2)

    compute = weights["embedding.word.weight"].dtype
    words = master["embedding.word.weight"][tokens].to(compute).float()
    x = (words + master["embedding.position.weight"][:length].to(compute).float()).to(compute)
    for layer in range(count_layers(weights)):
        at = f"layers.{layer}."
        normed = norm(x, at + "norm1")
        queries, keys, values = (split(linear(normed, f"{at}attention.{of}")) for of in ("query", "key", "value"))
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + linear(attended.transpose(1, 2).reshape(x.shape), at + "attention.output")
        gelu = functional.gelu(linear(norm(x, at + "norm2"), at + "mlp.up"), approximate="tanh")
        x = x + linear(gelu, at + "mlp.down")
    logits = functional.linear(norm(x, "final_norm"), weights["embedding.word.weight"])
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def train_by_torch(torch, tensors, metadata, text, steps, options):
    """Returns the losses of `steps` steps after the checkpoint. Weights, gradients and Adam moments are float32, and the
    model computes with weights rounded to the precision. The step is that of kernels/cuda/optimizer.cu."""
    device = torch.device(options.device)
    compute = {"bf16": torch.bfloat16, "float32": torch.float32}[options.precision]
    of = {name: torch.tensor(tensor, dtype=torch.float32, device=device) for name, tensor in tensors.items()}
    master = {name: of[name].requires_grad_() for name in of if not name.endswith((".exp_avg", ".exp_avg_sq"))}
    first_step = int(metadata["step"])
    number = int(metadata["optimizer_steps"])
    losses = []
    for step in range(first_step, first_step + steps):
        tokens, targets = (torch.from_numpy(rows).to(device) for rows in batch_of(text, metadata, step))
        weights = {name: tensor.to(compute) for name, tensor in master.items()}
        loss = loss_by_torch(torch, weights, master, options.heads, tokens, targets)
        loss.backward()
        losses.append(loss.item())
        number += 1
        with torch.no_grad():
            norm = math.sqrt(sum(float(tensor.grad.double().square().sum()) for tensor in master.values()))
            scale = options.clip / norm if 0 < options.clip < norm else 1.0
            rate = options.lr / (1 - BETA1**number)
            for name, tensor in master.items():
                gradient = tensor.grad * scale
                first = of[name + ".exp_avg"].mul_(BETA1).add_(gradient, alpha=1 - BETA1)
                second = of[name + ".exp_avg_sq"].mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
                root = (second / (1 - BETA2**number)).sqrt_().add_(ADAM_EPSILON)
                decay = options.lr * options.weight_decay if tensor.dim() == 2 else 0.0
                tensor.mul_(1 - decay).addcdiv_(first, root, value=-rate)
                tensor.grad = None
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="checkpoint from which both start, written by sluice run --checkpoint")
    parser.add_argument("--run", required=True, help="JSON output of the sluice run that resumed from it")
    parser.add_argument("--data", required=True, help="text file of that run")
    parser.add_argument("--heads", type=int, default=4, help="number of attention heads (default 4, as in the built-in model)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of the run (default 0.001)")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="weight decay of the run (default 0.01)")
    parser.add_argument("--clip-grad", dest="clip", type=float, default=1.0, help="gradient norm to which the run clips (default 1)")
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    parser.add_argument("--device", default="cuda", help="PyTorch device (default cuda)")
    parser.add_argument("--tolerance", type=float, default=math.inf, help="largest accepted difference of losses in nats (default: unlimited)")
    parser.add_argument("--numpy", action="store_true", help="compute only the first loss, by numpy in float64")
    parser.add_argument("--json", help="write both curves to this file")
    options = parser.parse_args()

    tensors, metadata = read_checkpoint(options.checkpoint)
    check_is_gpt(tensors, options.heads)
    text = np.fromfile(options.data, np.uint8)
    with open(options.run, encoding="utf-8") as file:
        rows = json.load(file)["steps"]
    if not rows or rows[0]["step"] != int(metadata["step"]) + 1:
        raise SystemExit(f"{options.run}: expected a run that begins with step {int(metadata['step']) + 1}")
    expected = [row["loss"] for row in rows]

    if options.numpy:
        expected = expected[:1]
        losses = [loss_by_numpy(tensors, options.heads, *batch_of(text, metadata, int(metadata["step"])))]
        how = "numpy, float64"
    else:
        try:
            import torch
        except ImportError:
            print("nothing compared: PyTorch is not installed")
            return 0
        if options.device.startswith("cuda") and not torch.cuda.is_available():
            print("nothing compared: PyTorch sees no GPU")
            return 0
        losses = train_by_torch(torch, tensors, metadata, text, len(expected), options)
        how = f"PyTorch {torch.__version__}, {options.precision}"

    differences = [abs(a - b) for a, b in zip(losses, expected)]
    largest = max(range(len(differences)), key=lambda i: differences[i] if math.isfinite(differences[i]) else math.inf)
    for i in sorted({0, len(losses) // 4, len(losses) // 2, 3 * len(losses) // 4, len(losses) - 1}):
        print(f"step {rows[i]['step']:>5}  sluice {expected[i]:.5f}  {how} {losses[i]:.5f}")
    print(
        f"{len(losses)} steps: losses differ by at most {differences[largest]:.2g} nats "
        f"(step {rows[largest]['step']}), {sum(differences) / len(differences):.2g} on average"
    )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "how": how,
                    "largest_difference": differences[largest],
                    "steps": [row["step"] for row in rows[: len(losses)]],
                    "sluice": expected,
                    "pytorch": losses,
                },
                file,
                indent=1,
            )
    return 0 if differences[largest] <= options.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
