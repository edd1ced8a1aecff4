"""Predictions of the runs of claims, and the rows of their measures."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

from claim import Range

import sluice

SAME, OTHER = "as published", "differs"
UNITS = {"iteration": " s", "model_tflops": " TFLOP/s", "hardware_tflops": " TFLOP/s", "petaflops": " PFLOP/s",
         "memory": " GiB", "days": " days", "transfer_rate": " GB/s"}


class RunResult:
    """The prediction of a run: of the fastest combination that fits in memory."""

    def __init__(self, claim, run, document):
        self.source = f'{claim.file}: run "{run.name}"'
        folder = os.path.dirname(claim.file)

        def simulated():
            scenario = sluice.Scenario.from_json(json.dumps(document), folder, self.source)
            return sluice.simulate(scenario, memory=False)

        result = simulated()
        if run.granularity:
            tokens = result.resolved["sequence_length"]
            if "model" not in result.resolved or not tokens:
                raise sluice.InputError(f"{self.source}: cut requires a model and a sequence length")
            if run.granularity > tokens:
                raise sluice.InputError(f"{self.source}: /cut/granularity: expected at most the sequence's {tokens}"
                                        f" tokens, got {run.granularity}")
            name = document["schedule"] if isinstance(document["schedule"], str) else document["schedule"]["name"]
            lengths = result.terapipe_slices(run.granularity)
            document = {**document, "schedule": {"name": name, "slice_lengths": lengths}}
            result = simulated()
        self.scenario, self.combinations = document, 1
        # Without what only predicts: a result holds the whole graph.
        schedule, facts = result.schedule, result.resolved
        self.op_s = result.op_s if any(measure.kind == "op_ratio" for measure in claim.measures) else None
        self.slices, self.devices = schedule.slice_lengths, facts["devices"]
        self.iteration_s = result.iteration_s
        self.tokens_per_s = result.tokens_per_s
        self.model_tflops, self.hardware_tflops = result.model_tflops_per_device, result.hardware_tflops_per_device
        sequences = schedule.num_sequences * schedule.num_microbatches * facts["dp"]
        # Tokens (sequences if there is no sequence length) per second and device.
        self.rate = (self.tokens_per_s or sequences / self.iteration_s) / self.devices
        peaks = result.peak_memory_bytes
        self.peak_bytes = int(peaks.max()) if len(peaks) else 0
        self.transfer_bytes = result.transfer_bytes
        self.fits = result.fits
        if any(measure.kind == "formula_ratio" for measure in claim.measures):
            # (m + p - 1)(t_f + t_b) of the slowest stage.
            slowest = max(sum(result.op_s(kind, stage, i) for kind in "FB" for i in range(len(self.slices)))
                          for stage in range(schedule.num_stages))
            self.formula_s = (schedule.num_microbatches + schedule.num_ranks - 1) * slowest

    def key(self):
        return (self.fits is not False, self.rate)


def run_all(claims):
    """Predicts all runs of all claims in parallel. Returns the results by name, per claim."""
    tasks = [(claim, run, document) for claim in claims for run in claim.runs.values()
             for document in run.scenarios(claim.scenario)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda task: RunResult(*task), tasks))
    out = [{} for _ in claims]
    for (claim, run, _), result in zip(tasks, results):
        of = out[claims.index(claim)]
        best = of.setdefault(run.name, result)
        count = best.combinations + (best is not result)
        if result.key() > best.key():
            of[run.name] = result
        of[run.name].combinations = count
    return out


def slices_text(lengths):
    """Groups slices of equal length: "4 x 120, 64"."""
    out = []
    for length in lengths:
        if out and out[-1][1] == length:
            out[-1][0] += 1
        else:
            out.append([1, length])
    return ", ".join(f"{count} x {length}" if count > 1 else str(length) for count, length in out)


def text_of(kind, value):
    """Returns a published or predicted value as text."""
    unit = UNITS.get(kind, "")
    if value is None:
        return ""
    if isinstance(value, bool):
        return "fits" if value else "does not fit"
    if isinstance(value, Range):
        low, high = value
        if high == float("inf"):
            return f">= {low:.3g}{unit}"
        return f"<= {high:.3g}{unit}" if low == float("-inf") else f"{low:.3g} to {high:.3g}{unit}"
    if isinstance(value, list):
        if kind == "order":
            return " < ".join(value)
        return slices_text(value) if kind == "slices" else ", ".join(f"{each:.3g}" for each in value)
    return value if isinstance(value, str) else f"{value:.3g}{unit}"


def difference(ours, published):
    """Returns "+4.2 %", "as published" or "differs"; "" without a published value."""
    if published is None:
        return ""
    if isinstance(published, (bool, str)) or (isinstance(published, list) and isinstance(published[0], str)):
        if published in ("falls", "rises"):
            return SAME if ours == sorted(ours, reverse=published == "falls") else OTHER
        return SAME if ours == published else OTHER
    if isinstance(published, Range):
        low, high = published
        return SAME if low <= ours <= high else difference(ours, low if ours < low else high)
    if isinstance(published, list):
        return ", ".join(map(difference, ours, published))
    if published == 0:
        return SAME if ours == 0 else OTHER
    tenths = 1000 * (ours / published - 1)
    tenths = int(abs(tenths) + 0.5) * (1 if tenths > 0 else -1)  # away from zero, as the tables do
    return f"{tenths / 10 + 0.0:+.1f} %"


class Row:
    """A row of the table: the published and the predicted value of a measure."""

    def __init__(self, claim, measure, runs):
        self.name, self.measure, self.kind = measure.name, measure, measure.kind
        self.claim = claim
        self.of = [runs[name] for name in measure.of]
        self.over = [runs[name] for name in measure.over]
        # Whether all its runs fit in memory.
        self.fits = self.kind == "fits" or all(run.fits is not False for run in self.of + self.over)
        self.published = text_of(self.kind, measure.published)
        self.value = self._value()
        if self.kind == "best_value":
            self.ours = json.dumps(self.value)
            number = isinstance(self.value, (int, float))
            exact = measure.published if not isinstance(measure.published, Range) else None
            self.difference = (SAME if self.value == exact else OTHER) if exact is not None else (
                difference(self.value, measure.published) if number else "")
        else:
            self.ours = text_of(self.kind, self.value)
            slices = self.kind == "slices" and measure.published is not None
            self.difference = ((SAME if self.value == measure.published else OTHER) if slices
                               else difference(self.value, measure.published))

    def _known(self, value, needs):
        if value:
            return value
        raise sluice.InputError(f'{self.claim.file}: measure "{self.name}": {self.kind} requires {needs}')

    def _value(self):
        kind, measure, of = self.kind, self.measure, self.of[0]
        over = self.over[0] if self.over else None
        if kind == "speedup":
            return of.rate / over.rate
        if kind in ("speedups", "largest_speedup"):
            speedups = [one.rate / other.rate for one, other in zip(self.of, self.over)]
            return speedups if kind == "speedups" else max(speedups)
        if kind == "iteration":
            return of.iteration_s
        if kind in ("model_tflops", "hardware_tflops"):
            return self._known(getattr(of, kind), "a model")
        if kind == "petaflops":
            return self._known(of.hardware_tflops, "a model") * of.devices / 1e3
        if kind == "memory":
            return self._known(of.peak_bytes, "a model") / 2**30
        if kind == "memory_ratio":
            return self._known(of.peak_bytes, "a model") / self._known(over.peak_bytes, "a model")
        if kind == "days":
            return measure.tokens / self._known(of.tokens_per_s, "a sequence length") / 86400
        if kind == "op_ratio":
            return self._op_s(of) / self._op_s(over)
        if kind == "formula_ratio":
            return of.iteration_s / of.formula_s
        if kind == "transfer_ratio":
            return of.transfer_bytes / self._known(over.transfer_bytes, "a model and transfers")
        if kind == "transfer_rate":
            return of.transfer_bytes / of.iteration_s / 1e9
        if kind == "fits":
            self._known(of.fits is not None, "a model and a cluster")
            return of.fits
        if kind == "slices":
            return of.slices
        if kind == "best_value":
            return self._best_value()
        runs = zip(measure.of, self.of)
        if measure.by == "time":
            return [name for name, _ in sorted(runs, key=lambda pair: 1 / pair[1].rate)]
        return [name for name, _ in sorted(runs, key=lambda pair: self._known(pair[1].peak_bytes, "a model"))]

    def _op_s(self, run):
        try:
            return run.op_s(*self.measure.op)
        except sluice.InputError as error:
            raise sluice.InputError(f"{run.source}: {error}") from None

    def _best_value(self):
        value = self.of[0].scenario
        for key in self.measure.key[1:].split("/"):
            if not isinstance(value, dict) or key not in value:
                raise sluice.InputError(f'{self.claim.file}: measure "{self.name}": the scenario of run'
                                        f' "{self.measure.of[0]}" has no {self.measure.key}')
            value = value[key]
        return value
