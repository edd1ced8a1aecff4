"""Modules that tests trace, written as users write them."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Grouped-query attention with rotary embedding, as in Llama."""

    def __init__(self, hidden, heads, kv_heads, size, qk_norm=False):
        super().__init__()
        self.size = size
        self.wq = nn.Linear(hidden, heads * size, bias=False)
        self.wk = nn.Linear(hidden, kv_heads * size, bias=False)
        self.wv = nn.Linear(hidden, kv_heads * size, bias=False)
        self.wo = nn.Linear(heads * size, hidden, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(size), nn.RMSNorm(size)]) if qk_norm else None

    def forward(self, x, cos, sin):
        q, k, v = (w(x).unflatten(-1, (-1, self.size)) for w in (self.wq, self.wk, self.wv))
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k = (turned(each, cos, sin) for each in (q, k))
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.wo(out.transpose(1, 2).flatten(2))


def turned(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class FeedForward(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.w1 = nn.Linear(hidden, width, bias=False)
        self.w2 = nn.Linear(width, hidden, bias=False)
        self.w3 = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """A router and experts by grouped GEMMs."""

    def __init__(self, hidden, count, per_token, width):
        super().__init__()
        self.count = count
        self.per_token = per_token
        self.router = nn.Linear(hidden, count, bias=False)
        self.w13 = nn.Parameter(torch.empty(count, hidden, 2 * width))
        self.w2 = nn.Parameter(torch.empty(count, width, hidden))

    def forward(self, x):
        rows = x.flatten(0, 1)
        scores, chosen = torch.topk(F.softmax(self.router(rows), dim=-1, dtype=torch.float32), self.per_token)
        order = torch.argsort(chosen.flatten(), stable=True)
        ends = torch.histc(chosen.flatten().float(), self.count, 0, self.count - 1).cumsum(0).to(torch.int32)
        token = order // self.per_token
        gate, up = torch._grouped_mm(rows[token], self.w13, offs=ends).chunk(2, dim=-1)
        weighted = F.silu(gate) * up * scores.flatten()[order].unsqueeze(-1)
        out = torch._grouped_mm(weighted.to(x.dtype), self.w2, offs=ends)
        return torch.zeros_like(rows).scatter_add(0, token.unsqueeze(-1).expand_as(out), out).view_as(x)


class Layer(nn.Module):
    def __init__(self, hidden, attention, feed_forward):
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden)
        self.attention = attention
        self.feed_forward_norm = nn.RMSNorm(hidden)
        self.feed_forward = feed_forward

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    def __init__(self, hidden, vocab, size, layers):
        super().__init__()
        self.size = size
        self.words = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(hidden)
        self.output = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        angles = torch.arange(tokens.shape[1])[:, None] / 10000 ** (torch.arange(0, self.size, 2) / self.size)
        angles = torch.cat((angles, angles), dim=-1)[None, :, None, :]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))


@torch.library.custom_op("traced_test::convolution", mutates_args=())
def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A causal depthwise convolution and SiLU, as in causal_conv1d."""
    raise NotImplementedError


@torch.library.custom_op("traced_test::convolution_backward", mutates_args=())
def convolution_backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> list[torch.Tensor]:
    raise NotImplementedError


@torch.library.custom_op("traced_test::scan", mutates_args=())
def scan(x: torch.Tensor, step: torch.Tensor, decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Mamba-2's scan of x [batch, tokens, heads, size] with b and c [batch, tokens, groups, state]."""
    raise NotImplementedError


@torch.library.custom_op("traced_test::scan_backward", mutates_args=())
def scan_backward(
    gradient: torch.Tensor, x: torch.Tensor, step: torch.Tensor, decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> list[torch.Tensor]:
    raise NotImplementedError


def like_inputs(gradient, *inputs):
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in inputs]


def add_gradient(op, backward):
    op.register_fake(lambda x, *rest: torch.empty_like(x, memory_format=torch.contiguous_format))
    backward.register_fake(like_inputs)
    op.register_autograd(
        lambda ctx, gradient: tuple(backward(gradient, *ctx.saved_tensors)),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )


add_gradient(convolution, convolution_backward)
add_gradient(scan, scan_backward)


class Mamba(nn.Module):
    """Mamba-2 with fused kernels."""

    def __init__(self, hidden, heads, size, state, groups):
        super().__init__()
        self.norm = nn.RMSNorm(hidden)
        self.heads, self.size, self.groups = heads, size, groups
        self.inner, self.keys = heads * size, groups * state
        self.in_projection = nn.Linear(hidden, 2 * self.inner + 2 * self.keys + heads, bias=False)
        self.taps = nn.Parameter(torch.empty(self.inner + 2 * self.keys, 4))
        self.taps_bias = nn.Parameter(torch.empty(self.inner + 2 * self.keys))
        self.decay = nn.Parameter(torch.empty(heads))
        self.skip = nn.Parameter(torch.empty(heads))
        self.step_bias = nn.Parameter(torch.empty(heads))
        self.gated_norm = nn.RMSNorm(self.inner)
        self.out_projection = nn.Linear(self.inner, hidden, bias=False)

    def forward(self, x):
        z, inputs, step = self.in_projection(self.norm(x)).split(
            (self.inner, self.inner + 2 * self.keys, self.heads), dim=-1
        )
        values, b, c = convolution(inputs, self.taps, self.taps_bias).split((self.inner, self.keys, self.keys), dim=-1)
        values = values.unflatten(-1, (self.heads, self.size))
        b, c = (each.unflatten(-1, (self.groups, -1)) for each in (b, c))
        step = F.softplus(step.float() + self.step_bias)
        y = scan(values, step, -torch.exp(self.decay.float()), b, c).flatten(2)
        return x + self.out_projection(self.gated_norm(y * F.silu(z)))


class MambaModel(nn.Module):
    def __init__(self, hidden, vocab, layers):
        super().__init__()
        self.words = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(hidden)
        self.output = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def mamba(layers=16):
    """The Mamba-2 layers of Nemotron 3 Nano."""
    with torch.device("meta"):
        return MambaModel(2688, 131072, [Mamba(2688, 64, 64, 128, 8) for _ in range(layers)])


def llama(layers=32):
    with torch.device("meta"):
        parts = [Layer(4096, Attention(4096, 32, 8, 128), FeedForward(4096, 14336)) for _ in range(layers)]
        return Transformer(4096, 128256, 128, parts)


def qwen_experts(layers=48):
    """Qwen3-30B-A3B."""
    with torch.device("meta"):
        parts = [
            Layer(2048, Attention(2048, 32, 4, 128, qk_norm=True), Experts(2048, 128, 8, 768)) for _ in range(layers)
        ]
        return Transformer(2048, 151936, 128, parts)
