"""The heuristic of Qi et al. 2023 (arXiv:2401.10241), section 3.1, and a replay of schedules with its times."""

import itertools
from typing import NamedTuple

import sluice


class Budget(NamedTuple):
    """Times and memory of one rank's ops on one microbatch, in any units.

    F adds `activation`, I releases all but `kept` of it, W releases `kept`. The rank never exceeds `limit`.
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    activation: int = 1
    kept: int = 1
    limit: int = 0


class Rules(NamedTuple):
    """Options of the heuristic, whose search tries all combinations."""

    delay_first_gradient: bool = False  # warm up with one forward more than fits before the first input gradient
    hold_back_forwards: bool = False  # a rank two forwards ahead of the next skips one where that adds no bubble
    fill_every_gap: bool = False  # run a W in every gap, also in one shorter than the W


class _Rank:
    def __init__(self, budget):
        self.budget = budget
        self.weights = 0  # Ws placed
        self.clock = 0  # end of the last op
        self.begin = 0  # start of the first op
        self.idle = 0  # since the first op
        self.held = 0
        self.forward_end = []  # by microbatch
        self.gradient_end = []  # of the I, by microbatch
        self.order = []

    @property
    def pending(self):
        return self.weights < len(self.gradient_end)


class Built:
    """A schedule with one stage per rank, in model order, built op by op, each after the ops that it depends on.

    `span` and `makespan` are those of its ops: `hop` is the latency of a transfer, which occupies neither rank.
    """

    def __init__(self, budgets, microbatches, hop=0, rules=None):
        self.rules = rules or Rules()
        self.hop = hop
        self.microbatches = microbatches
        self.most_idle = 0
        self.ranks = [_Rank(budget) for budget in budgets]
        for budget in budgets:
            if budget.limit < budget.activation:
                raise sluice.InputError(f"zero-bubble schedule: limit: expected at least one activation, {budget}")
        self._warm_up()
        for _ in range(1, microbatches):
            self._round()
        for rank in self.ranks:
            self._finish_weights(rank)
        self.makespan = max(rank.clock for rank in self.ranks)
        self.span = max(rank.clock - rank.begin for rank in self.ranks)

    def schedule(self):
        orders = [rank.order for rank in self.ranks]
        ops = lambda rank: (sluice.Op(kind, microbatch, rank) for kind, microbatch in orders[rank])  # noqa: E731
        return sluice.Schedule.from_function(ops, ranks=len(orders), microbatches=self.microbatches)

    def _forward_ready(self, i):
        """Returns when the input of the next F arrives from the neighbor."""
        return 0 if i == 0 else self.ranks[i - 1].forward_end[len(self.ranks[i].forward_end)] + self.hop

    def _gradient_ready(self, i):
        if i + 1 == len(self.ranks):
            return 0
        return self.ranks[i + 1].gradient_end[len(self.ranks[i].gradient_end)] + self.hop

    def _run(self, rank, kind, microbatch, ready, time):
        if not rank.order:
            rank.begin = max(rank.clock, ready)
        elif ready > rank.clock:
            rank.idle += ready - rank.clock
            self.most_idle = max(self.most_idle, rank.idle)
        rank.clock = max(rank.clock, ready) + time
        rank.order.append((kind, microbatch))
        return rank.clock

    def _forward(self, i):
        rank = self.ranks[i]
        end = self._run(rank, "F", len(rank.forward_end), self._forward_ready(i), rank.budget.forward)
        rank.forward_end.append(end)
        rank.held += rank.budget.activation

    def _input_gradient(self, i):
        rank = self.ranks[i]
        end = self._run(rank, "I", len(rank.gradient_end), self._gradient_ready(i), rank.budget.input_gradient)
        rank.gradient_end.append(end)
        rank.held -= rank.budget.activation - rank.budget.kept

    def _weight_gradient(self, rank):
        self._run(rank, "W", rank.weights, 0, rank.budget.weight_gradient)
        rank.weights += 1
        rank.held -= rank.budget.kept

    def _finish_weights(self, rank):
        while rank.pending:
            self._weight_gradient(rank)

    def _fill_until(self, rank, ready):
        """Runs weight gradients until `ready`.

        One that would end later pays off where waiting would make this rank the one with the most idle time.
        """
        while rank.pending and rank.clock + rank.budget.weight_gradient <= ready:
            self._weight_gradient(rank)
        if rank.pending and rank.clock < ready:
            if self.rules.fill_every_gap or rank.idle + (ready - rank.clock) > self.most_idle:
                self._weight_gradient(rank)

    def _forwards_before_gradient(self):
        """Returns the forwards of each rank before the first microbatch's gradient can arrive, within its limit."""
        ranks = self.ranks
        counts = [0] * len(ranks)
        gradient_end = ranks[-1].clock + ranks[-1].budget.input_gradient
        for i in reversed(range(len(ranks) - 1)):
            of = ranks[i].budget
            ready = gradient_end + self.hop
            clock, held = ranks[i].clock, ranks[i].held
            while 1 + counts[i] < self.microbatches and held + of.activation <= of.limit:
                if clock >= ready if self.rules.delay_first_gradient else clock + of.forward > ready:
                    break
                held += of.activation
                clock += of.forward
                counts[i] += 1
            gradient_end = max(clock, ready) + of.input_gradient
        # The rounds assume that a rank is one forward ahead of the next unless none is left.
        for i in range(1, len(ranks)):
            before = counts[i - 1]
            counts[i] = min(counts[i], before if before + 1 == self.microbatches else max(0, before - 1))
        return counts

    def _warm_up(self):
        for i in range(len(self.ranks)):
            self._forward(i)
        for i, count in enumerate(self._forwards_before_gradient()):
            for _ in range(count):
                self._forward(i)
        for i in reversed(range(len(self.ranks))):
            self._input_gradient(i)

    def _better_held_back(self, i):
        """Whether a rank two forwards ahead of the next one should rather wait for that rank's input gradient."""
        rank, following = self.ranks[i], self.ranks[i + 1]
        of = rank.budget
        gradient_here = following.clock + following.budget.forward + following.budget.input_gradient + self.hop
        if rank.clock >= gradient_here:
            return True
        end = rank.clock + of.forward
        held = rank.held + of.activation
        weights = rank.weights
        while held > of.limit and weights < len(rank.gradient_end):
            end += of.weight_gradient
            held -= of.kept
            weights += 1
        return end > gradient_here and rank.idle + (gradient_here - rank.clock) <= self.most_idle

    def _round(self):
        """Adds one input gradient on all ranks, and before it one forward on those that should run one.

        A rank runs a forward only if the next one does, or it would only run ahead.
        """
        ranks = self.ranks
        runs = [False] * len(ranks)
        for i in reversed(range(len(ranks))):
            wants = len(ranks[i].forward_end) < self.microbatches
            if i + 1 < len(ranks) and wants:
                ahead = len(ranks[i].forward_end) - len(ranks[i + 1].forward_end)
                wants = runs[i + 1] and not (
                    self.rules.hold_back_forwards and ahead >= 2 and self._better_held_back(i)
                )
            runs[i] = wants
        for i, rank in enumerate(ranks):
            if not runs[i]:
                continue
            # Once all Ws are done there is room: one microbatch fewer is between F and I than after the warm-up.
            while rank.held + rank.budget.activation > rank.budget.limit and rank.pending:
                self._weight_gradient(rank)
            self._fill_until(rank, self._forward_ready(i))
            self._forward(i)
        for i in reversed(range(len(ranks))):
            self._fill_until(ranks[i], self._gradient_ready(i))
            # No rank waits for the gradients of the first rank.
            if i == 0 and len(ranks[0].forward_end) == self.microbatches:
                self._finish_weights(ranks[0])
            self._input_gradient(i)


def published(budgets, microbatches, hop):
    """Returns what the paper's own search finds: the shortest span of its eight rules."""
    rules = (Rules(*choice) for choice in itertools.product((False, True), repeat=3))
    return min((Built(budgets, microbatches, hop, each) for each in rules), key=lambda built: built.span)


class Replay:
    """The longest paths of a schedule of unsliced microbatches, with effects that the package does not model."""

    def __init__(self, schedule):
        """Orders the ops of all ranks by their dependencies. Raises ScheduleError for a deadlock."""
        self.num_ranks, self.num_stages = schedule.num_ranks, schedule.num_stages
        self.placement = schedule.placement[0]
        waiting = [schedule.ops(rank) for rank in range(self.num_ranks)]
        done = set()
        self.steps = []  # rank, op, dependency, rank of the dependency, target
        position = [0] * self.num_ranks
        left = sum(map(len, waiting))
        while left:
            before = left
            for rank, ops in enumerate(waiting):
                while position[rank] < len(ops):
                    op = ops[position[rank]]
                    forward = op.kind == "F"
                    source = op.stage + (-1 if forward else 1)
                    needs = None
                    if op.kind != "W" and 0 <= source < self.num_stages:
                        needs = (forward, source, op.microbatch)
                        if needs not in done:
                            break
                    if op.kind != "W":
                        done.add((forward, op.stage, op.microbatch))
                    target = op.stage + (1 if forward else -1)
                    sends = op.kind != "W" and 0 <= target < self.num_stages
                    self.steps.append((rank, op, needs, self.placement[target] if sends else None))
                    position[rank] += 1
                    left -= 1
            if left == before:
                raise sluice.ScheduleError("replay: the schedule deadlocks")

    def run(self, op_time, hop, blocked=0, every_wrap_waits=True):
        """Returns the span (the longest time from the first start to the last end of a rank) and the makespan.

        `op_time(kind, stage)` and `hop(source rank, target rank)` are times, `blocked` is the fraction of the latency
        for which the sender cannot start its next op. Without `every_wrap_waits`, the first and last rank wait only
        for the first of each group of num_ranks microbatches that wrap around to their next chunk.
        """
        end = {}
        free = [0] * self.num_ranks
        first = [None] * self.num_ranks
        last = [0] * self.num_ranks
        times = {(kind, stage): op_time(kind, stage) for kind in "FBIW" for stage in range(self.num_stages)}
        hops = [[hop(a, b) for b in range(self.num_ranks)] for a in range(self.num_ranks)]
        for rank, (kind, microbatch, stage, _), needs, target in self.steps:
            start = free[rank]
            if needs is not None:
                source = self.placement[needs[1]]
                wraps = source > rank if kind == "F" else source < rank
                if not wraps or every_wrap_waits or microbatch % self.num_ranks == 0:
                    start = max(start, end[needs] + hops[source][rank])
            if first[rank] is None:
                first[rank] = start
            last[rank] = free[rank] = start + times[kind, stage]
            if kind != "W":
                end[kind == "F", stage, microbatch] = last[rank]
            if target is not None:
                free[rank] += blocked * hops[rank][target]
        return max(b - a for a, b in zip(first, last)), max(last)
