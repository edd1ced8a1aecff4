"""What calibration on two measurements does to other settings, and the prior that it rests on (decision 0032)."""

import math
import random

import numpy

import sluice

SECONDS = {"s": 1, "ms": 1e-3}
MOST_PAIRS = 200  # of each group; drawn with a fixed seed where there are more


def groups_of(score):
    """Returns the rows (predicted s, measured s, setting) of iteration times by model, GPU and precision."""
    out = {}
    for row in score.comparisons:
        if row.model and row.unit in SECONDS and row.measured > 0:
            second = SECONDS[row.unit]
            key = f"{row.model}, {row.gpu}, {row.precision}"
            out.setdefault(key, []).append((row.predicted * second, row.measured * second, row.setting))
    return out


def pairs_of(rows):
    """Returns pairs of rows with different settings, all or MOST_PAIRS."""
    pairs = [(i, k) for i in range(len(rows)) for k in range(i) if rows[i][2] != rows[k][2]]
    return random.Random(1).sample(pairs, MOST_PAIRS) if len(pairs) > MOST_PAIRS else pairs


def errors_of(rows):
    """Returns the mean errors of rows before and after calibration on pairs of the others, and the worst after."""
    plain = numpy.array([abs(predicted / measured - 1) for predicted, measured, _ in rows])
    before, after, worst = [], [], 0
    for pair in pairs_of(rows):
        correction = sluice.fit_correction([rows[i][:2] for i in pair])
        others = [i for i in range(len(rows)) if i not in pair]
        errors = [abs(correction.at(rows[i][0]) / rows[i][1] - 1) for i in others]
        before.append(plain[others].mean())
        after.append(numpy.mean(errors))
        worst = max(worst, *errors)
    return numpy.mean(before), numpy.mean(after), worst


def calibrated_text(score):
    """Returns the mean errors of each group of three or more rows, and their mean weighted by rows."""
    out = []
    for name, rows in groups_of(score).items():
        if len(rows) > 2 and len({row[2] for row in rows}) > 1:
            out.append((name, len(rows), *errors_of(rows)))
    if out:
        total = sum(row[1] for row in out)
        before, after = (sum(row[1] * row[i] for row in out) / total for i in (2, 3))
        out.append((f"all {len(out)} groups", total, before, after, max(row[4] for row in out)))
    return "".join(
        f"{'':<22} calibrated on two of {count} rows: {100 * after:.2f} % (before {100 * before:.2f} %, worst"
        f" {100 * worst:.0f} %): {name}\n"
        for name, count, before, after, worst in out
    )


def log_evidence(rows, prior):
    """Returns the logarithm of the marginal likelihood of a group under a prior (sim/calibration/correction_fit.h)."""
    scale, fixed, deviation, power, spread = prior
    predicted, measured = (numpy.array([row[i] for row in rows]) for i in (0, 1))
    errors = numpy.log(measured / predicted)
    design = numpy.stack([numpy.full(len(rows), scale), fixed * predicted.min() / predicted], 1)
    steps = numpy.linspace(-3, 3, 25)
    usual = deviation * math.exp(-power * numpy.log(predicted).mean())
    found = []
    for step in steps:
        precision = 1 / (usual * math.exp(spread * step)) ** 2
        normal = design.T @ design * precision + numpy.eye(2)
        right = design.T @ errors * precision
        squares = errors @ errors * precision - right @ numpy.linalg.solve(normal, right)
        found.append((len(rows) * math.log(precision) - math.log(numpy.linalg.det(normal)) - squares - step**2) / 2)
    greatest = max(found)
    return greatest + math.log(sum(math.exp(each - greatest) for each in found) / numpy.exp(-(steps**2) / 2).sum())


def climbed(fitness, point, axes):
    """Returns a local maximum of `fitness` along the axes."""
    best, value, step = point, fitness(point), 0.4
    while step > 0.02:
        moved = False
        for axis in axes:
            for sign in (1, -1):
                other = best.copy()
                other[axis] *= math.exp(sign * step)
                if (new := fitness(other)) > value:
                    best, value, moved = other, new, True
        if not moved:
            step /= 2
    return best


def prior_text(scores):
    """Returns the prior with the greatest likelihood of the groups of two or more rows of all tables.

    First without a fixed time, then that alone: rows with equal predictions do not distinguish it from a scale.
    """
    groups = [rows for score in scores for rows in groups_of(score).values() if len(rows) > 1]
    if len(groups) < 10:
        return ""

    def fitness(prior):
        return sum(log_evidence(rows, prior) for rows in groups)

    prior = climbed(fitness, numpy.array([0.1, 0, 0.1, 0.2, 1]), (0, 2, 3, 4))
    prior[1] = 0.05
    scale, fixed, deviation, power, spread = climbed(fitness, prior, (1,))
    return (
        f"prior of calibration from {len(groups)} groups: scale {scale:.3f}, fixed time {fixed:.3f}, deviation"
        f" {deviation:.3f} x (s)^-{power:.2f}, spread {spread:.2f}\n"
    )
