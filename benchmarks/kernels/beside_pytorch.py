#!/usr/bin/env python3
"""Sluice beside PyTorch on the same machine, in one run.

  beside_pytorch.py layer --profile profile.json --hidden 4096 --heads 32
      Times a transformer layer, forward and backward, in bfloat16 with scaled_dot_product_attention, for the slices
      that the profile (of `sluice profile --backend cuda` on the same model) has, and prints both.

  beside_pytorch.py losses --run run.json --weights first.safetensors --data text ...
      Trains the same model from the same weights on the same tokens, and compares the losses of every step with those
      of `sluice run --json`. The weights are a checkpoint of `sluice run --steps 1 --lr 0`.

Needs PyTorch and NumPy. Exits with 1 if the layer is slower than --share of PyTorch's speed, or if a loss is further
off than --tolerance.
"""

import argparse
import json
import struct
import sys

import torch
import torch.nn.functional as F

MASK = (1 << 64) - 1


# --- the model -------------------------------------------------------------------------------------------------------


def attention(q, k, v, context):
    """Causal, for queries that come behind `context` earlier tokens. [sequences, heads, tokens, head size]"""
    if context == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    from torch.nn.attention.bias import causal_lower_right

    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(q.shape[-2], k.shape[-2]))


def layer(x, w, heads, earlier=None):
    """GPT-2's layer: `w` by the names of Sluice's parameters. `earlier` is keys and values of the tokens before."""
    n, t, h = x.shape

    def split(y):
        return y.view(n, t, heads, h // heads).transpose(1, 2)

    y = F.layer_norm(x, (h,), w["norm1.weight"], w["norm1.bias"], 1e-5)
    q, k, v = (
        split(F.linear(y, w[f"attention.{name}.weight"], w[f"attention.{name}.bias"]))
        for name in ("query", "key", "value")
    )
    context = 0
    if earlier is not None:
        context = earlier[0].shape[-2]
        k = torch.cat((earlier[0], k), dim=-2)
        v = torch.cat((earlier[1], v), dim=-2)
    a = attention(q, k, v, context).transpose(1, 2).reshape(n, t, h)
    x = x + F.linear(a, w["attention.output.weight"], w["attention.output.bias"])
    y = F.layer_norm(x, (h,), w["norm2.weight"], w["norm2.bias"], 1e-5)
    y = F.gelu(F.linear(y, w["mlp.up.weight"], w["mlp.up.bias"]), approximate="tanh")
    return x + F.linear(y, w["mlp.down.weight"], w["mlp.down.bias"])


def layer_shapes(h, ffn):
    shapes = {"norm1.weight": (h,), "norm1.bias": (h,), "norm2.weight": (h,), "norm2.bias": (h,)}
    for name in ("query", "key", "value", "output"):
        shapes[f"attention.{name}.weight"] = (h, h)
        shapes[f"attention.{name}.bias"] = (h,)
    shapes.update({"mlp.up.weight": (ffn, h), "mlp.up.bias": (ffn,), "mlp.down.weight": (h, ffn), "mlp.down.bias": (h,)})
    return shapes


def loss_of(weights, tokens, targets, heads, layers):
    """Mean over the tokens, in nats."""
    x = F.embedding(tokens, weights["embedding.word.weight"])
    x = x + weights["embedding.position.weight"][: tokens.shape[1]]
    for i in range(layers):
        prefix = f"layers.{i}."
        x = layer(x, {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}, heads)
    x = F.layer_norm(x, (x.shape[-1],), weights["final_norm.weight"], weights["final_norm.bias"], 1e-5)
    head = weights.get("head.weight", weights["embedding.word.weight"])
    logits = F.linear(x, head).float()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


# --- what Sluice trains on (exec/token_source.cc) ---------------------------------------------------------------------


def spread(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def mixed(first, *others):
    for other in others:
        first = spread(spread(first) ^ other)
    return first


def batch(text, seed, step, sequences, length):
    rows = []
    for i in range(sequences):
        place = ((len(text) - length) * mixed(seed, step, i)) >> 64
        rows.append(list(text[place : place + length + 1]))
    both = torch.tensor(rows)
    return both[:, :-1], both[:, 1:]


def read_safetensors(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        kind = {"F32": torch.float32, "F64": torch.float64}[entry["dtype"]]
        out[name] = torch.frombuffer(data[begin:end], dtype=kind).reshape(entry["shape"]).float()
    return out


# --- the two comparisons ----------------------------------------------------------------------------------------------


def seconds_of(work, repeat):
    """Median, by events of the device; the first ones are not counted."""
    times = []
    for i in range(repeat + 5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(begin.elapsed_time(end) / 1e3)
    times.sort()
    return times[len(times) // 2]


def layer_command(options):
    with open(options.profile, encoding="utf-8") as file:
        profile = json.load(file)
    ours = {}
    for sample in profile["samples"]:
        if sample["part"] == "layer" and sample["kind"] in ("F", "B"):
            ours.setdefault((sample["tokens"], sample["context"]), {})[sample["kind"]] = sample["seconds"]
    h, heads = options.hidden, options.heads
    ffn = options.ffn or 4 * h
    weights = {
        name: torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(0.02).requires_grad_()
        for name, shape in layer_shapes(h, ffn).items()
    }
    rows = []
    for (tokens, context), kinds in sorted(ours.items()):
        if tokens < options.least_tokens or "F" not in kinds or "B" not in kinds:
            continue
        x = torch.randn(1, tokens, h, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        earlier = None
        if context > 0:
            earlier = [
                torch.randn(1, heads, context, h // heads, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for _ in range(2)
            ]
        upstream = torch.randn_like(x)
        inputs = [x, *weights.values(), *(earlier or [])]

        def work():
            y = layer(x, weights, heads, earlier)
            torch.autograd.grad(y, inputs, upstream)

        theirs = seconds_of(work, options.repeat)
        mine = kinds["F"] + kinds["B"]
        # Forward products and attention; the backward has twice as many.
        flops = 3 * (2 * tokens * (4 * h * h + 2 * h * ffn) + 4 * tokens * (context + (tokens + 1) / 2) * h)
        rows.append(
            {
                "tokens": tokens,
                "context": context,
                "sluice_s": mine,
                "pytorch_s": theirs,
                "share_of_pytorch_speed": theirs / mine,
                "sluice_tflops": flops / mine / 1e12,
                "pytorch_tflops": flops / theirs / 1e12,
            }
        )
        print(
            f"{tokens:6} tokens behind {context:6}: Sluice {1e3 * mine:8.3f} ms, PyTorch {1e3 * theirs:8.3f} ms, "
            f"{theirs / mine:.2f} of its speed, {flops / mine / 1e12:.0f} TFLOP/s",
            file=sys.stderr,
        )
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "pytorch": torch.__version__, "layers": rows}, indent=1))
    if not rows:
        sys.exit("the profile has no layer of so many tokens with F and B")
    return min(row["share_of_pytorch_speed"] for row in rows) >= options.share


def losses_command(options):
    with open(options.run, encoding="utf-8") as file:
        ours = [step["loss"] for step in json.load(file)["steps"]]
    with open(options.data, "rb") as file:
        text = file.read()
    device, low = torch.device(options.device), getattr(torch, options.dtype)
    masters = {
        name: tensor.to(device).requires_grad_()
        for name, tensor in read_safetensors(options.weights).items()
        if not name.endswith((".exp_avg", ".exp_avg_sq"))
    }
    layers = 1 + max(int(name.split(".")[1]) for name in masters if name.startswith("layers."))
    groups = [
        {"params": [w for w in masters.values() if w.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [w for w in masters.values() if w.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), eps=1e-8)
    worst = 0.0
    rows = []
    for step, mine in enumerate(ours):
        tokens, targets = batch(text, options.seed, step, options.sequences, options.sequence_length)
        optimizer.zero_grad()
        total = 0.0
        for i in range(options.sequences):  # one sequence at a time, as microbatches are
            low_weights = {name: w.to(low) for name, w in masters.items()}
            loss = loss_of(
                low_weights, tokens[i : i + 1].to(device), targets[i : i + 1].to(device), options.heads, layers
            )
            (loss / options.sequences).backward()
            total += loss.item() / options.sequences
        if options.clip_grad > 0:
            torch.nn.utils.clip_grad_norm_(masters.values(), options.clip_grad)
        optimizer.step()
        worst = max(worst, abs(total - mine))
        rows.append({"step": step + 1, "sluice": mine, "pytorch": total})
    print(json.dumps({"pytorch": torch.__version__, "worst_difference": worst, "losses": rows}, indent=1))
    print(f"{len(ours)} steps: losses differ by at most {worst:.5f}", file=sys.stderr)
    return worst <= options.tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_layer = commands.add_parser("layer")
    of_layer.add_argument("--profile", required=True)
    of_layer.add_argument("--hidden", type=int, default=4096)
    of_layer.add_argument("--heads", type=int, default=32)
    of_layer.add_argument("--ffn", type=int, default=0, help="default: 4 x hidden")
    of_layer.add_argument("--least-tokens", type=int, default=1024)
    of_layer.add_argument("--repeat", type=int, default=20)
    of_layer.add_argument("--share", type=float, default=0.9, help="of PyTorch's speed, at least")
    of_losses = commands.add_parser("losses")
    of_losses.add_argument("--run", required=True)
    of_losses.add_argument("--weights", required=True)
    of_losses.add_argument("--data", required=True)
    of_losses.add_argument("--heads", type=int, required=True)
    of_losses.add_argument("--sequences", type=int, required=True, help="of a step")
    of_losses.add_argument("--sequence-length", type=int, required=True)
    of_losses.add_argument("--seed", type=int, default=1)
    of_losses.add_argument("--lr", type=float, default=1e-3)
    of_losses.add_argument("--weight-decay", type=float, default=0.01)
    of_losses.add_argument("--clip-grad", type=float, default=1.0)
    of_losses.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    of_losses.add_argument("--device", default="cuda")
    of_losses.add_argument("--tolerance", type=float, default=0.05, help="nats a token")
    options = parser.parse_args()
    fine = layer_command(options) if options.command == "layer" else losses_command(options)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
