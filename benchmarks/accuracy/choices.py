"""What predictions are good for: choosing between configurations."""

import math
import statistics

from score import Run

import sluice


def by_set(runs):
    """Returns the runs of each set, by its name."""
    sets = {}
    for run in runs:
        sets.setdefault(run.set, []).append(run)
    return [sets[name] for name in sorted(sets)]


def runs_of(score):
    """Returns the configurations of a table to choose from: those with the same model, batch and GPUs are a set."""
    if score.runs:
        return score.runs
    out = []
    for row in score.comparisons:
        if row.group != "iteration time":
            continue
        words = (cell.split(" ", 1) for cell in row.setting.replace(";", ",").split(", ") if " " in cell)
        cells = {word[0]: word[1] for word in words}
        gpus = math.prod(float(cells.get(size, 1)) for size in ("tp", "pp", "dp"))
        if "global_batch" in cells:
            cells.pop("microbatches", None)
        keys = ("hidden", "layers", "seq", "global_batch", "microbatches")
        name = ", ".join([f"gpus {gpus:g}", *(f"{key} {cells[key]}" for key in keys if key in cells)])
        alike = f"tp {cells.get('tp', '')}, mbs {cells.get('micro_batch', '')}"
        out.append(Run(name, row.place, row.setting, alike, row.measured, row.predicted))
    return out


def ordered(runs, by_likelihood):
    """Returns the runs of a set in the order of measurement: those predicted not to fit come last."""
    out = []
    for fits, tight in ((True, False), (True, True), (False, True)):
        part = [run for run in runs if (run.fits, run.tight) == (fits, tight)]
        groups = {alike: i for i, alike in enumerate(dict.fromkeys(run.alike for run in part))}
        rows = [(run.predicted_s, groups[run.alike]) for run in part]
        errors = {} if by_likelihood else {"group_error": 0, "own_error": 0}
        out += [part[i] for i in sluice.shortlist(rows, len(part), **errors)]
    return out


def regret_text(runs):
    """Returns what choosing by prediction alone loses in sets of two or more runs of which one did not fail."""
    losses = {1: [], 5: []}  # by the number of runs that are measured
    failed = 0
    for runs_of_set in by_set(runs):
        best = min((run.measured_s for run in runs_of_set if run.measured_s), default=0)
        if not best or len(runs_of_set) < 2:
            continue
        for count, found in losses.items():
            chosen = []
            for run in ordered(runs_of_set, count > 1):
                if len(chosen) == count:
                    break
                if run.measured_s:
                    chosen.append(run.measured_s)
                elif count == 1:
                    failed += 1
            found.append(min(chosen) / best - 1)
    if not losses[1]:
        return ""

    def line(what, found):
        return (
            f"{'':<22} {what}: slower than the best of {len(found)} sets by {100 * statistics.median(found):.1f} %"
            f" (median), {100 * statistics.fmean(found):.1f} % (mean)"
        )

    return f"{line('first choice', losses[1])}; {failed} choices had failed\n{line('best of five', losses[5])}\n"


def difference_text(runs):
    """Returns the median error of predicted differences, of configurations of a set predicted within 15 %."""
    off = []
    for runs_of_set in by_set(runs):
        known = [run for run in runs_of_set if run.measured_s]
        for i, run in enumerate(known):
            for other in known[:i]:
                predicted = math.log(run.predicted_s / other.predicted_s)
                if abs(predicted) < 0.15:
                    off.append(abs(predicted - math.log(run.measured_s / other.measured_s)))
    if not off:
        return ""
    median = 100 * statistics.median(off)
    return f"{'':<22} median error of the difference of {len(off)} pairs: {median:.1f} %\n"
