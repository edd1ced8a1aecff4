"""Errors of predictions: comparisons, their summaries, and how they are printed."""

import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import sluice

FOLDER = os.path.dirname(os.path.abspath(__file__))
_POOL = ThreadPoolExecutor(os.cpu_count())


@dataclass
class Comparison:
    """A predicted and a measured value. Errors are averaged over each group."""

    group: str  # the quantity: "iteration time", "memory by rank", ...
    place: str  # "file: row 7"
    setting: str
    measured: float
    predicted: float
    unit: str = ""
    gpu: str = ""  # of the scenario; empty: unknown
    precision: str = ""
    model: str = ""  # "126 layers of 16384"; empty: unknown, or a correction is applied
    # Of a run whose error counts for the intervals of predictions (errors.py); empty for others.
    facts: dict = field(default_factory=dict)
    set: str = ""
    alike: str = ""

    @property
    def error(self):
        return self.predicted / self.measured - 1

    def counted(self, result):
        """Returns the comparison as one whose error counts for the intervals of predictions."""
        known = result.resolved
        model, sequences = known["model"], known["micro_batch"] * known["microbatches"] * known["dp"]
        self.facts = known["facts"]
        tokens = f"{sequences} x {known['sequence_length']} tokens"
        self.set = f"{model['parameters']} parameters, {known['devices']} GPUs, {tokens}"
        self.alike = f"tp {known['tp']}, mbs {known['micro_batch']}"
        return self

    def of(self, result):
        """Returns the comparison with the GPU, the precision and the model of a prediction."""
        facts = result.resolved
        self.gpu = facts.get("gpu", {}).get("name", "")
        self.precision = facts["precision"]
        if "model" in facts:
            model = facts["model"]
            experts = f", {model['experts']} experts" if model["experts"] else ""
            self.model = f"{model['layers']} layers of {model['hidden']}{experts}"
        return self


@dataclass
class Verdict:
    """Whether a run fits in memory."""

    place: str
    setting: str
    measured_fits: bool
    predicted_fits: bool


@dataclass
class Run:
    """One of the configurations of a set that were all run, to choose from by prediction."""

    set: str  # what is not chosen: model, GPUs, batch
    place: str
    setting: str
    alike: str  # runs of a set with equal texts have similar errors
    measured_s: float = 0  # 0: the run failed
    predicted_s: float = 0
    fits: bool = True
    tight: bool = False  # within the memory margin, or does not fit


@dataclass
class Skipped:
    """A row that could not be predicted, and the reason."""

    place: str
    reason: str


@dataclass
class Score:
    """What the rows of a table show."""

    comparisons: list = field(default_factory=list)
    verdicts: list = field(default_factory=list)
    runs: list = field(default_factory=list)
    skipped: list = field(default_factory=list)

    def add(self, *records):
        lists = {Comparison: self.comparisons, Verdict: self.verdicts, Run: self.runs, Skipped: self.skipped}
        for record in records:
            lists[type(record)].append(record)

    def rows(self, table, predict):
        """Calls `predict(row)` for every row in parallel. Returns what it returns, None for rows that were skipped."""

        def one(row):
            try:
                return predict(row)
            except sluice.InputError as error:
                return Skipped(table.place(row), str(error))

        out = list(_POOL.map(one, range(len(table))))
        self.add(*(each for each in out if isinstance(each, Skipped)))
        return [None if isinstance(each, Skipped) else each for each in out]


def scored(table, predict):
    """Returns the score of the records (one, a list or None) that `predict(row)` returns for each row."""
    score = Score()
    for found in score.rows(table, predict):
        score.add(*(found if isinstance(found, list) else filter(None, [found])))
    return score


@dataclass
class Summary:
    """Errors of the comparisons of one group, GPU and precision."""

    rows: list

    def __post_init__(self):
        first = self.rows[0]
        self.group, self.gpu, self.precision = first.group, first.gpu, first.precision
        errors = [row.error for row in self.rows]
        self.mean = sum(map(abs, errors)) / len(errors)
        self.signed = sum(errors) / len(errors)
        self.median = statistics.median(map(abs, errors))
        self.worst, self.worst_row = max(((abs(row.error), row.place) for row in self.rows), key=lambda pair: pair[0])


def summaries(score):
    groups = {}
    for row in score.comparisons:
        groups.setdefault((row.group, row.gpu, row.precision), []).append(row)
    return [Summary(rows) for rows in groups.values()]


def row_of(place):
    """Returns "row 7" of "file.csv: row 7"."""
    return place.rpartition(": ")[2]


def hits(score):
    """Returns the numbers of right verdicts and of all, of runs that fitted and of runs that did not."""
    out = {"fits_right": 0, "fits": 0, "out_of_memory_right": 0, "out_of_memory": 0}
    for verdict in score.verdicts:
        key = "fits" if verdict.measured_fits else "out_of_memory"
        out[key] += 1
        out[key + "_right"] += verdict.measured_fits == verdict.predicted_fits
    return out


def fits_text(score):
    if not score.verdicts:
        return ""
    text = "fits: {fits_right} of {fits} correct; out of memory: {out_of_memory_right} of {out_of_memory} correct"
    return text.format(**hits(score))


HEADER = (
    f"{'table':<22} {'absolute error of':<34} {'rows':>5}  {'mean':>8}  {'median':>8}  {'worst':>8}  {'bias':>10}"
    f"  {'GPU':<14} {'precision':<11} worst row\n"
)


def score_text(name, score, rows):
    """Returns one line per group; with `rows`, also every comparison."""

    def percent(fraction):
        return f"{100 * fraction:.2f} %"

    out = ""
    for of in summaries(score):
        out += (
            f"{name:<22} {of.group:<34} {len(of.rows):>5}  {percent(of.mean):>8}  {percent(of.median):>8}"
            f"  {percent(of.worst):>8}  {100 * of.signed:>+8.2f} %  {of.gpu or '-':<14} {of.precision or '-':<11}"
            f" {row_of(of.worst_row)}\n"
        )
    if score.verdicts:
        out += f"{name:<22} {fits_text(score)}\n"
    if score.skipped:
        out += f"{name:<22} {len(score.skipped)} rows skipped, the first: {score.skipped[0].reason}\n"
    if not rows:
        return out
    for row in score.comparisons:
        out += (
            f"  {100 * row.error:>+7.2f} %  {row.measured:>10.5g} {row.predicted:>10.5g} {row.unit:<4} {row.group}:"
            f" {row.place}; {row.setting}\n"
        )
    for each in score.verdicts:
        if each.measured_fits != each.predicted_fits:
            ran, fit = ("ran", "not fit") if each.measured_fits else ("ran out of memory", "fit")
            out += f"  wrong: {each.place} {ran}, predicted to {fit}: {each.setting}\n"
    return out + "".join(f"  skipped: {each.reason}\n" for each in score.skipped)


def score_json(scores):
    """Returns the document sluice.accuracy/1."""
    tables = []
    for name, score in scores:
        table = {"table": name}
        table["groups"] = [
            {"group": of.group, "rows": len(of.rows), "mean_absolute_error": of.mean,
             "median_absolute_error": of.median, "worst_absolute_error": of.worst, "mean_error": of.signed,
             "gpu": of.gpu, "precision": of.precision, "worst_row": of.worst_row}
            for of in summaries(score)
        ]
        table["fits"] = hits(score) if score.verdicts else None
        table["figures"] = [
            {"row": row.place, "group": row.group, "setting": row.setting, "measured": row.measured,
             "predicted": row.predicted, "unit": row.unit, "gpu": row.gpu, "precision": row.precision,
             "error": row.error}
            for row in score.comparisons
        ]
        table["verdicts"] = [
            {"row": each.place, "setting": each.setting, "fits": each.measured_fits,
             "predicted_to_fit": each.predicted_fits}
            for each in score.verdicts
        ]
        table["skipped"] = [{"row": each.place, "reason": each.reason} for each in score.skipped]
        tables.append({key: value for key, value in table.items() if value})
    return json.dumps({"schema": "sluice.accuracy/1", "tables": tables}, indent=2, ensure_ascii=False) + "\n"


def base_of(name):
    """Returns the scenario of what a table does not contain, a new copy."""
    with open(f"{FOLDER}/scenarios/{name}.json", encoding="utf-8") as file:
        return json.load(file)


def seconds_text(value):
    return repr(value).removesuffix(".0")


def document_row(scenario, place, seconds):
    """Returns a row of a table that `sluice calibrate` reads: a column per part of the scenario."""
    document = scenario.to_dict()
    parts = ("model", "cluster", "parallelism", "batch", "schedule", "software")
    cells = [json.dumps(document[part], separators=(",", ":"), sort_keys=True, ensure_ascii=False) for part in parts]
    quoted = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
    return f'{quoted},{seconds_text(seconds)},"{place}"\n'


DOCUMENT_HEADER = "/model,/cluster,/parallelism,/batch,/schedule,/software,iter_s,note\n"
