"""Claims of papers: sluice.claim/1 files (docs/formats.md), with the checks of their keys."""

import difflib
import itertools
import json
import math

import sluice

MEASURES = (
    "speedup", "speedups", "largest_speedup", "iteration", "model_tflops", "hardware_tflops", "petaflops", "memory",
    "memory_ratio", "fits", "order", "best_value", "days", "op_ratio", "formula_ratio", "transfer_ratio",
    "transfer_rate", "slices",
)
WITH_OVER = ("speedup", "speedups", "largest_speedup", "memory_ratio", "op_ratio", "transfer_ratio")
WITH_LISTS = ("speedups", "largest_speedup", "order")


class Range(tuple):
    """The lowest and the highest published value."""


class Reader:
    """A JSON value with its place, for errors "file: /place: rule, got value"."""

    def __init__(self, value, source, pointer=""):
        self.value, self.source, self.pointer = value, source, pointer
        self.asked = set()

    def fail(self, rule, hint=""):
        text = json.dumps(self.value, separators=(",", ":"), ensure_ascii=False)
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise sluice.InputError(f"{self.source}: {self.pointer or '/'}: {rule}, got {shown}{hint}")

    def check(self, holds, rule, hint=""):
        if not holds:
            self.fail(rule, hint)
        return self.value

    def has(self, key):
        self.asked.add(key)
        return self.object().get(key) is not None

    def at(self, key):
        if not self.has(key):
            raise sluice.InputError(f"{self.source}: {self.pointer}/{key}: required key is missing")
        return Reader(self.value[key], self.source, f"{self.pointer}/{key}")

    def get(self, key, default=""):
        return self.at(key).string() if self.has(key) else default

    def elements(self, what):
        """Returns the elements of a list that must not be empty."""
        self.check(isinstance(self.value, list), "expected an array")
        self.check(self.value, f"expected at least one {what}")
        return [Reader(value, self.source, f"{self.pointer}/{i}") for i, value in enumerate(self.value)]

    def object(self, what=""):
        return self.check(isinstance(self.value, dict), "expected an object" + what)

    def string(self):
        return self.check(isinstance(self.value, str), "expected a string")

    def number(self, low=-1e18, high=1e18):
        number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        return self.check(number and low <= self.value <= high, f"expected a number from {low:g} to {high:g}")

    def integer(self, low, high):
        whole = isinstance(self.value, int) and not isinstance(self.value, bool)
        return self.check(whole and low <= self.value <= high, f"expected a whole number from {low} to {high}")

    def one_of(self, words):
        return self.check(self.value in words, f"expected one of {', '.join(words)}", self.nearest(words))

    def nearest(self, words):
        found = difflib.get_close_matches(str(self.value), words, 1)
        return f"; did you mean '{found[0]}'?" if found else ""

    def finish(self):
        """Raises InputError for a key that nobody asked for."""
        for key in self.object():
            if key not in self.asked:
                hint = Reader(key, "").nearest(sorted(self.asked))
                raise sluice.InputError(f"{self.source}: {self.pointer}/{key}: unknown key{hint}")


def merged(document, patch):
    """Returns a document after a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    out = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


class Run:
    """One prediction of a claim: its scenario with changes (merge patches).

    One change of each list of `fastest_of` is applied as well: the run is the fastest of all combinations that fit in
    memory. The slices of TeraPipe's optimum, in multiples of `granularity` tokens, are applied last; 0: none.
    """

    def __init__(self, name, reader):
        self.name = name
        self.changes = {key: value for key, value in reader.object(": keys of a scenario").items()
                        if key not in ("fastest_of", "cut")}
        self.fastest_of = []
        self.granularity = 0
        if reader.has("fastest_of"):
            lists = reader.at("fastest_of")
            for choices in lists.elements("list of changes"):
                self.fastest_of.append([each.object(": keys of a scenario") for each in choices.elements("change")])
                if math.prod(map(len, self.fastest_of)) > 10_000:
                    lists.fail("expected at most 10000 combinations")
        if reader.has("cut"):
            cut = reader.at("cut")
            self.granularity = cut.at("granularity").integer(1, 1 << 20)
            cut.finish()

    def scenarios(self, base):
        """Yields the scenario of each combination; the last list varies fastest."""
        for choice in itertools.product(*self.fastest_of):
            document = merged(base, self.changes)
            for change in choice:
                document = merged(document, change)
            yield document


class Measure:
    """A quantity of the runs, and its published value."""

    def __init__(self, reader, runs):
        def run_name(value):
            value.check(value.string() in runs, "expected the name of a run", value.nearest(list(runs)))
            return value.value

        def run_names(value):
            return [run_name(each) for each in (value.elements("value") if self.kind in WITH_LISTS else [value])]

        self.kind = kind = reader.at("measure").one_of(MEASURES)
        self.of = run_names(reader.at("of"))
        self.over = []
        if kind in WITH_OVER:
            self.over = run_names(reader.at("over"))
            reader.at("over").check(len(self.over) == len(self.of), f"expected {len(self.of)} runs, as in of")
        self.name = reader.get("name", self.of[0])
        if kind == "order":
            self.by = reader.at("by").one_of(("time", "memory"))
        if kind == "best_value":
            key = reader.at("key")
            rule = "expected a place in the scenario, such as /batch/micro_batch"
            self.key = key.check(key.string().startswith("/"), rule)
        if kind == "days":
            self.tokens = reader.at("tokens").number(1)
        if kind == "op_ratio":
            op = reader.at("op")
            indices = [op.at(key).integer(0, 1 << 20) if op.has(key) else 0 for key in ("stage", "slice")]
            self.op = (op.at("kind").one_of(("F", "B")), *indices)
            op.finish()
        self.published = self._published(reader.at("published"), run_name) if reader.has("published") else None
        reader.finish()

    def _published(self, reader, run_name):
        value = reader.value
        if self.kind == "fits":
            return reader.check(isinstance(value, bool), "expected true or false")
        if self.kind == "order":
            names = [run_name(each) for each in reader.elements("value")]
            reader.check(sorted(names) == sorted(self.of), "expected each run of `of` once")
            return names
        if self.kind == "slices":
            return [each.integer(1, 1 << 30) for each in reader.elements("value")]
        if self.kind == "speedups":
            if not isinstance(value, list):
                return reader.one_of(("falls", "rises"))
            numbers = [each.number() for each in reader.elements("value")]
            reader.check(len(numbers) == len(self.of), f"expected {len(self.of)} numbers, as there are runs")
            return numbers
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return reader.number()
        if isinstance(value, list):
            reader.check(len(value) == 2, "expected two numbers: a range")
            low, high = (each.number() for each in reader.elements("number"))
            reader.check(low <= high, "expected the lower end of the range first")
            return Range((low, high))
        reader.check(isinstance(value, dict), 'expected a number, [low, high], {"at_least": x} or {"at_most": x}')
        least, most = reader.has("at_least"), reader.has("at_most")
        reader.check(least != most, "expected either at_least or at_most")
        bound = reader.at("at_least" if least else "at_most").number()
        reader.finish()
        return Range((bound, math.inf) if least else (-math.inf, bound))


class Claim:
    """A claim of a paper, its runs and their measures. Scenarios are parsed when they run."""

    def __init__(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
        except (OSError, ValueError) as error:
            raise sluice.InputError(f"{path}: {error}") from None
        root = Reader(document, path)
        self.file = path
        root.at("schema").check(document["schema"] == "sluice.claim/1", 'expected "sluice.claim/1"')
        self.text, self.source = root.at("claim").string(), root.at("source").string()
        self.assumed, self.why = root.get("assumed"), root.get("why")
        self.scenario = root.at("scenario").object(": keys of a scenario")
        runs = root.at("runs")
        runs.check(runs.object(": keys of a scenario"), "expected at least one run")
        self.runs = {name: Run(name, runs.at(name)) for name in sorted(runs.value)}
        self.measures = [Measure(each, self.runs) for each in root.at("measures").elements("measure")]
        root.finish()
