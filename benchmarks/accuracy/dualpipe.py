"""DeepSeek's trace of DualPipe: a forward and a backward, part by part, compared with the weave `dualpipe`."""

import re
import statistics
from dataclasses import dataclass

from score import Comparison, Score

import sluice

OURS = {"attn": "attention", "mlp": "experts"}


@dataclass
class Part:
    """A part of a traced block. Its layer counts in the order of its pass; times are from the start of the block."""

    part: str  # "attention(F)"
    layer: int
    start_s: float  # of its first kernel, on any stream
    end_s: float  # of its last
    busy_s: float  # in which the stream that is busy longer executes kernels
    kernels: int  # of that stream
    second_busy_s: float = 0  # the same of the other stream: weight gradients may use two

    @property
    def seconds(self):
        return self.end_s - self.start_s

    @property
    def communicates(self):
        return self.part.startswith(("dispatch", "combine"))


def traced_parts(table):
    """Reads a row per part and stream, with its busy time and its extent (first start to last end)."""
    parts = {}
    for row in range(len(table)):
        word = re.fullmatch(r"(attn|attention|dispatch|mlp|experts|combine)\(([FBW])\)", table.text(row, "op"))
        if not word or (word[2] == "W" and word[1] in ("dispatch", "combine")):
            table.fail(row, "op", "expected a part of a layer")
        name = f"{OURS.get(word[1], word[1])}({word[2]})"
        start, end, busy = (1e-6 * table.number(row, f"gpu_{of}_us", 0, 1e12) for of in ("start", "end", "busy"))
        layer, kernels = table.integer(row, "index", 0, 1000), table.integer(row, "kernels", 1, 1 << 20)
        one = Part(name, layer, start, end, busy, kernels)
        known = parts.setdefault((one.part, one.layer), one)
        if known is one:
            continue
        known.start_s, known.end_s = min(known.start_s, start), max(known.end_s, end)
        known.second_busy_s = min(known.busy_s, busy)
        if busy > known.busy_s:
            known.busy_s, known.kernels = busy, one.kernels
    return list(parts.values())


def gaps_without(parts, layer):
    """Returns the gaps of the compute parts of other layers.

    They are the idle time of a stream per kernel, and the fraction of the second stream's busy time during which the
    first one waits: medians over the parts with one stream and over those with two.
    """
    others = [part for part in parts if part.layer != layer and not part.communicates]
    one = [(part.seconds - part.busy_s) / part.kernels for part in others if part.second_busy_s == 0]
    kernel_s = statistics.median(one) if one else 0
    two = [
        (part.seconds - part.busy_s - kernel_s * part.kernels) / part.second_busy_s
        for part in others
        if part.second_busy_s > 0
    ]
    return kernel_s, statistics.median(two) if two else 0


def replayed(parts, seconds):
    """Returns the weave of the parts, with these seconds."""
    passes = {"F": [], "B": []}
    for part in parts:
        layers = passes["F" if part.part.endswith("(F)") else "B"]
        while len(layers) <= part.layer:
            layers.append({})
        layers[part.layer][part.part] = seconds(part)
    return sluice.weave(passes["F"], passes["B"])


def extent_s(part, gaps):
    return part.busy_s + part.kernels * gaps[0] + part.second_busy_s * gaps[1]


def traced_waits(parts):
    """Returns each part with the one for which it waits: the one that ends last before its start."""
    out = set()
    for part in parts:
        before = [other for other in parts if other.end_s <= part.start_s]
        last = max(before, key=lambda other: other.end_s, default=None)
        out.add(((part.part, part.layer), last and (last.part, last.layer)))
    return out


def woven_waits(block):
    names = [(part.part, part.layer) for part in block.parts]
    return {(name, names[part.after] if part.after >= 0 else None) for name, part in zip(names, block.parts)}


def score_dualpipe_trace(table):
    """Scores the weave with the extents of the parts, with their busy times, and with the gaps of the other layers."""
    parts = traced_parts(table)
    score = Score()
    end_s = max(part.end_s for part in parts)
    compute_s = sum(part.seconds for part in parts if not part.communicates)
    place = f"{table.source}: rows 1 to {len(table)}"
    setting = f"F and B of {1 + max(part.layer for part in parts)} layers"
    block = replayed(parts, lambda part: part.seconds)
    same = traced_waits(parts) & woven_waits(block)
    busy = replayed(parts, lambda part: part.busy_s).seconds
    with_gaps = replayed(parts, lambda part: extent_s(part, gaps_without(parts, part.layer))).seconds
    for group, measured, predicted, unit in (
        ("block from the extents of its parts", end_s, block.seconds, "s"),
        ("parts that wait for the same part", len(parts), len(same), "parts"),
        ("idle time of the compute lane", end_s - compute_s, block.seconds - compute_s, "s"),
        ("block from their busy times", end_s, busy, "s"),
        ("block from busy times and the gaps of other layers", end_s, with_gaps, "s"),
    ):
        score.add(Comparison(group, place, setting, measured, predicted, unit))
    return score
