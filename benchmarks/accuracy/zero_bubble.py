"""Tables of Qi et al. 2023 (arXiv:2401.10241). Each also uses the other one if it is in the same folder."""

import bisect
import glob
import math
import os
from typing import NamedTuple

from memory import score_zero_bubble_memory
from score import Comparison, Score, Skipped, scored
from zero_bubble_schedule import Budget, Replay, published

import sluice

# Constants of the framework and the machines of all rows. The first is counted, the other four were fitted together to
# the published rows (docs/results.md). Bytes that one optimizer step moves per parameter, in Megatron-LM with 32-bit
# gradients: unscaling and the check for infinities read and write the gradient, the norm reads it, clipping reads and
# writes it, Adam reads four values and writes three, the 16-bit copy is 4 + 2, zeroing the gradient 4: 8 + 4 + 8 + 28
# + 6 + 4.
STEP_BYTES = 58
MEMORY_BYTES_PER_SECOND = 0.75 * 2039e9  # A100-80GB, as in the catalogue
# Host part of a transfer as it was profiled (sequential transfers, each synchronized with the host), for which a rank
# with other work does not wait.
HOST_SECONDS = 0.2e-3
# Additional time per byte between nodes: a card of 100 Gb/s at about 80 %.
BETWEEN_NODES_SECONDS_PER_BYTE = 1 / 10.5e9
RANKS_PER_NODE = 8
# Megatron-LM's schedules wait for their transfers; the zero-bubble framework only where a batch of transfers also
# contains the input of the next op.
ZERO_BUBBLE_BLOCKED = 0.5
# Fraction by which a microbatch in the steady state takes longer than its profiled ops, as ranks that wait for each
# other run at the pace of the slowest at that time. Warm-up and drain are not affected.
PACE = 0.07
# NVLink, only for models without a profile: 28 MB in the 0.4 ms of the 1.5B profile beyond the host part.
IN_NODE_BYTES_PER_SECOND = 70e9

PROFILE_COLUMNS = ("model", "pp", "num_microbatches", "micro_batch", "t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms")
SIZE_COLUMNS = ("model", "layers", "heads", "hidden", "seq", "pp", "micro_batch", "num_microbatches", "schedule",
                "derived_iter_ms")


class Sizes(NamedTuple):
    layers: int
    heads: int
    hidden: int
    sequence: int

    @classmethod
    def of(cls, table, row):
        return cls(table.integer(row, "layers", 1, 100000), table.integer(row, "heads", 1, 1 << 20),
                   table.integer(row, "hidden", 1, 1 << 24), table.integer(row, "seq", 1, 1 << 24))

    def layers_of_a_rank(self, ranks):
        """Embedding and head count as one layer each: in the paper the first and last stage have one layer fewer."""
        return max(1, (self.layers + 2) // ranks)


class Profile(NamedTuple):
    """Seconds of one rank's ops on a microbatch and of a transfer, as profiled."""

    forward: float
    input_gradient: float
    weight_gradient: float
    hop: float

    @property
    def work(self):
        return self.forward + self.input_gradient + self.weight_gradient

    def op_times(self, chunks=1, factor=1):
        f, i, w = (factor * time / chunks for time in self[:3])
        b = factor * (self.input_gradient + self.weight_gradient) / chunks
        times = {"F": f, "I": i, "W": w, "B": b}
        return lambda kind, stage: times[kind]


class ProfileRow(NamedTuple):
    ranks: int
    microbatches: int
    micro_batch: int
    profile: Profile

    @classmethod
    def of(cls, table, row):
        times = [table.number(row, column, 0, 1e9) / 1e3 for column in PROFILE_COLUMNS[4:]]
        return cls(table.integer(row, "pp", 1, 8192), table.integer(row, "num_microbatches", 1, 100000),
                   table.integer(row, "micro_batch", 1, 100000), Profile(*times))


def table_in_same_folder(table, columns):
    """Returns the first table by name, in the folder of `table`, that has `columns`."""
    for path in sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(table.source) or "."), "*.csv"))):
        try:
            other = sluice.Table(path)
        except sluice.InputError:
            continue  # reported when that table is scored
        if set(columns) <= set(other.columns):
            return other
    return None


def sizes_of(table):
    out = {}
    for row in range(len(table) if table else 0):
        out.setdefault(table.text(row, "model"), Sizes.of(table, row))
    return out


def budgets_of(profile, sizes, ranks, limit):
    """Returns the ranks' budgets for the memory of `limit` x ranks microbatches, times in nanoseconds.

    Without flash attention, activations are counted as in Korthikanti et al. 2022; the part kept after the input
    gradient as in table 1 of the paper.
    """
    times = [round(1e9 * seconds) for seconds in profile[:3]]
    activation = 34 * sizes.hidden + 5 * sizes.heads * sizes.sequence
    return [Budget(*times, activation, 32 * sizes.hidden, limit * ranks * activation)] * ranks


def published_search(profile, sizes, ranks, microbatches, limit):
    return published(budgets_of(profile, sizes, ranks, limit), microbatches, round(1e9 * profile.hop))


def score_zero_bubble_bubbles(table):
    """Tables 5 and 6: bubble rates of each schedule with the profiled times, rounded to the four published digits.

    Interleaved 1F1B twice: as published, and waiting for every microbatch. Skips rates that depend on sizes of a model
    which the other table does not have.
    """
    sizes = sizes_of(table_in_same_folder(table, SIZE_COLUMNS))

    def rates(row):
        given = ProfileRow.of(table, row)
        profile, ranks, microbatches = given.profile, given.ranks, given.microbatches
        model = table.text(row, "model")

        def known():
            if model not in sizes:
                raise sluice.InputError(
                    "expected a table with the layers, heads and hidden size of this model in the same folder"
                )
            return sizes[model]

        def of_family(family, span, chunks=1, **keys):
            replay = Replay(sluice.schedule(family, pp=ranks, microbatches=microbatches, **keys))
            found = replay.run(profile.op_times(chunks), lambda a, b: profile.hop, every_wrap_waits=span != "published")
            return found[0 if span is True else 1]

        def interleaved(span):
            chunks = known().layers_of_a_rank(ranks)
            return of_family("interleaved-1f1b", span, chunks, vpp=chunks)

        spans = [(column, group, lambda family=family: of_family(family, True))
                 for column, group, family in (("bubble_1f1b", "1F1B", "1f1b"), ("bubble_zbh1", "ZB-H1", "zb-h1"),
                                               ("bubble_zbh2", "ZB-H2", "zb-h2"))]
        spans += [("bubble_1f1b_i", "1F1B-I, as published", lambda: interleaved("published")),
                  ("bubble_1f1b_i", "1F1B-I", lambda: interleaved(False))]
        spans += [(f"bubble_zb{limit}p", f"ZB-{limit}p",
                   lambda limit=limit: published_search(profile, known(), ranks, microbatches, limit).span / 1e9)
                  for limit in (1, 2)]
        out = []
        for column, group, span in spans:
            group = "bubble rate " + group
            if column not in table.columns or not table.text(row, column):
                continue
            try:
                measured = table.number(row, column, 0, 1)
                rate = round((1 - microbatches * profile.work / span()) * 1e4) / 1e4
                setting = f"{model} pp {ranks} m {microbatches}"
                out.append(Comparison(group, table.place(row), setting, measured, rate))
            except sluice.InputError as error:
                out.append(Skipped(table.place(row), f"{group}: {error}"))
        return out

    return scored(table, rates)


class Layer(NamedTuple):
    """Times of a layer of a profiled model.

    A weight gradient consists of GEMMs, whose time per token is proportional to h^2; forward and input gradient
    additionally contain attention and other kernels, which are proportional to h.
    """

    hidden: float
    product: float  # seconds of a weight gradient, per token and h^2
    forward: float  # additional time of a forward, per h
    input_gradient: float  # likewise

    @classmethod
    def of(cls, row, sizes):
        tokens = sizes.sequence * row.micro_batch * sizes.layers_of_a_rank(row.ranks)
        weight = row.profile.weight_gradient
        return cls(sizes.hidden, weight / (tokens * sizes.hidden * sizes.hidden),
                   (row.profile.forward / weight - 1) * sizes.hidden,
                   (row.profile.input_gradient / weight - 1) * sizes.hidden)


USUAL_LAYER = Layer(4096, 9.8e-14, 2140, 2070)  # without any profile: the mean of 1.5B and 14.6B in table 6


def mixed(a, b, fraction):
    return [low + fraction * (high - low) for low, high in zip(a, b)]


def between(rows, microbatches):
    """Interpolates linearly between the profiled numbers of microbatches, on which times hardly depend."""
    above = next((i for i, row in enumerate(rows) if row.microbatches >= microbatches), None)
    if above is None:
        return rows[-1].profile
    if above == 0 or rows[above].microbatches == microbatches:
        return rows[above].profile
    low, high = rows[above - 1], rows[above]
    fraction = (microbatches - low.microbatches) / (high.microbatches - low.microbatches)
    return Profile(*mixed(low.profile, high.profile, fraction))


class Run:
    """One run of table 4, with its schedule, to predict with any factor on its ops."""

    def __init__(self, table, row, profiles, known):
        self.place, self.model = table.place(row), table.text(row, "model")
        self.kind = table.text(row, "schedule")
        self.ranks = table.integer(row, "pp", 1, 8192)
        self.microbatches = table.integer(row, "num_microbatches", 1, 100000)
        self.micro_batch = table.integer(row, "micro_batch", 1, 100000)
        self.sizes = Sizes.of(table, row)
        self.measured_s = table.number(row, "derived_iter_ms", 1e-3, 1e9) / 1e3
        self.zero_bubble = self.kind.startswith("ZB")
        bytes_sent = 2.0 * self.micro_batch * self.sizes.sequence * self.sizes.hidden
        self.between_nodes_s = bytes_sent * BETWEEN_NODES_SECONDS_PER_BYTE
        # Fraction of transfers between nodes.
        fraction = (self.ranks - 1) // RANKS_PER_NODE / (self.ranks - 1) if self.ranks > 1 else 0
        if self.model in profiles:
            self.profile = between(profiles[self.model], self.microbatches)
        else:
            hop = HOST_SECONDS + bytes_sent / IN_NODE_BYTES_PER_SECOND + fraction * self.between_nodes_s
            self.profile = self._from_others(known, hop)
        self.in_node_s = max(0.0, self.profile.hop - HOST_SECONDS - fraction * self.between_nodes_s)
        self.layers = self.sizes.layers_of_a_rank(self.ranks)
        self.chunks = self.layers if self.kind == "1F1B-I" else 1
        self.replay = Replay(self._schedule())
        hop = self.profile.hop
        self.plain_s = self._length(self.replay.run(self.profile.op_times(self.chunks), lambda a, b: hop))
        self.seconds_of = {}

    def _from_others(self, known, hop):
        """Interpolates the times of a model without a profile between the next smaller and the next larger model."""
        hidden = self.sizes.hidden
        above = next((i for i, layer in enumerate(known) if layer.hidden >= hidden), len(known) - 1)
        b = known[above]
        a = b if above == 0 or b.hidden < hidden else known[above - 1]
        fraction = 0 if a.hidden == b.hidden else (1 / hidden - 1 / a.hidden) / (1 / b.hidden - 1 / a.hidden)
        product, forward, input_gradient = mixed(a[1:], b[1:], fraction)
        tokens = self.sizes.sequence * self.micro_batch * self.sizes.layers_of_a_rank(self.ranks)
        weight = product * hidden * hidden * tokens
        return Profile(weight * (1 + forward / hidden), weight * (1 + input_gradient / hidden), weight, hop)

    def _schedule(self):
        if self.kind == "1F1B":
            return sluice.schedule("1f1b", pp=self.ranks, microbatches=self.microbatches)
        if self.kind == "1F1B-I":
            keys = {"pp": self.ranks, "microbatches": self.microbatches, "vpp": self.chunks}
            return sluice.schedule("interleaved-1f1b", **keys)
        if self.kind not in ("ZB-1p", "ZB-2p"):
            raise sluice.InputError(f"schedule: expected 1F1B, 1F1B-I, ZB-1p or ZB-2p, got '{self.kind}'")
        limit = 1 if self.kind == "ZB-1p" else 2
        return published_search(self.profile, self.sizes, self.ranks, self.microbatches, limit).schedule()

    def _length(self, found):
        """In zero-bubble schedules, ranks start the next iteration without waiting for the others."""
        span, makespan = found
        return span if self.zero_bubble else makespan

    def seconds(self, factor):
        """Returns the time with a factor on the ops: convex and piecewise linear in it, as a longest path is.

        Between two known factors that lie on a line with a third one, it is on this line.
        """
        known = sorted(self.seconds_of)
        at = bisect.bisect_left(known, factor)
        for i in (at - 2, at - 1):
            if 0 <= i and i + 2 < len(known):
                low, middle, high = ((each, self.seconds_of[each]) for each in known[i : i + 3])
                if low[0] <= factor <= high[0]:
                    slope = (high[1] - low[1]) / (high[0] - low[0])
                    if abs(low[1] + slope * (middle[0] - low[0]) - middle[1]) < 1e-12 * middle[1]:
                        return low[1] + slope * (factor - low[0])
        if factor not in self.seconds_of:
            found = self.replay.run(
                self.profile.op_times(self.chunks, factor),
                lambda a, b: self.in_node_s + (a // RANKS_PER_NODE != b // RANKS_PER_NODE) * self.between_nodes_s,
                blocked=ZERO_BUBBLE_BLOCKED if self.zero_bubble else 1,
            )
            step = 12 * self.sizes.hidden * self.sizes.hidden * self.layers * STEP_BYTES / MEMORY_BYTES_PER_SECOND
            pace = PACE * self.microbatches * factor * self.profile.work
            self.seconds_of[factor] = self._length(found) + pace + step
        return self.seconds_of[factor]

    def plain_seconds(self, factor):
        """Likewise, with only the profiled ops and transfers."""
        return factor * self.plain_s


def fitted_factor(runs, predict):
    """Returns the factor for which the geometric mean of predicted / measured over the runs is 1.

    Times are nearly proportional to it, so this fixed-point iteration converges in a few steps.
    """
    factor = 1
    for _ in range(6):
        logs = sum(math.log(predict(run, factor) / run.measured_s) for run in runs)
        factor *= math.exp(-logs / len(runs))
    return factor


def score_model(runs, profiled, score):
    all_rows = fitted_factor(runs, Run.seconds)
    for run in runs:
        if len(runs) == 1:
            reason = f"the only row of {run.model}: its factor cannot be fitted"
            score.add(Skipped(run.place, reason))
            continue
        others = [other for other in runs if other is not run]
        samples = run.micro_batch * run.microbatches / run.ranks
        seconds = run.seconds(fitted_factor(others, Run.seconds))
        plain = run.plain_seconds(fitted_factor(others, Run.plain_seconds))
        setting = f"{run.model} {run.kind} pp {run.ranks} m {run.microbatches}"
        for group, predicted in (
            ("throughput, left one out", seconds),
            ("profiled models, left one out" if profiled else "other models, left one out", seconds),
            ("all rows in the fit", run.seconds(all_rows)),
            ("plain replay, left one out", plain),
        ):
            measured = samples / run.measured_s
            score.add(Comparison(group, run.place, setting, measured, samples / predicted, "samples/s/GPU"))


def score_zero_bubble_throughput(table):
    """Table 4: throughput from the profiled times, scaled by one factor per model, which is fitted to its other rows.

    The times of a model without a profile are interpolated between models with one, by size. The only row of a model is
    skipped. Then memory, if the table has it.
    """
    score = Score()
    other = table_in_same_folder(table, PROFILE_COLUMNS)
    profiles, sizes = {}, sizes_of(table)
    for row in range(len(other) if other else 0):
        profiles.setdefault(other.text(row, "model"), []).append(ProfileRow.of(other, row))
    for rows in profiles.values():
        rows.sort(key=lambda row: row.microbatches)
    known = [Layer.of(rows[0], sizes[model]) for model, rows in sorted(profiles.items()) if model in sizes]
    known = sorted(known or [USUAL_LAYER], key=lambda layer: layer.hidden)
    models = {}
    for run in filter(None, score.rows(table, lambda row: Run(table, row, profiles, known))):
        models.setdefault(run.model, []).append(run)
    for model, runs in sorted(models.items()):
        score_model(runs, model in profiles, score)
    if "peak_mem_GB" in table.columns:
        memory = score_zero_bubble_memory(table)
        score.add(*memory.comparisons, *memory.skipped)
    return score
