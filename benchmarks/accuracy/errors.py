"""Classes of measured runs and the errors of their predictions: model/cluster/catalogue/errors/iteration-time.json.

A class is a set of runs with the same facts (model/scenario/error_classes.h). Classes are nested: each level adds the
facts of the next row of LEVELS. A run belongs to the finest class that it is in. A class has at least LEAST
configurations, clearly fewer runs than the coarser one, and an interval that holds for its own runs when they are left
out; otherwise the coarser one has its runs.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass

LEVELS = (("gpu", "model"), ("code_base",), ("bits",), ("pipeline",), ("framework",), ("expert_groups", "scale"))
LEAST = 8  # configurations of a class
MOST = 0.9  # of the runs of a class are in a finer one
HELD_OUT = 0.7  # of the runs of a class, at least, are in the interval of its other configurations
ENOUGH = 10  # configurations from which on a class needs no errors of others
TAIL = 0.1  # of the errors, below the interval and above it
OTHER_TAILS = (0.09, 0.11, 0.08, 0.12, 0.13, 0.14, 0.15)
COVERED = (0.74, 0.88)  # of the own runs that are in the interval of their class when left out
NEAR = 0.15  # configurations to choose from are predicted within this relative difference
PAIRS = 10  # of configurations, at least, of which a median is taken
MEDIAN_DIFFERENCE = 0.954  # of two normal variables, in standard deviations of one: 0.6745 x sqrt(2)


@dataclass(frozen=True)
class Residual:
    """A measured run and the error of its prediction."""

    error: float  # logarithm of measured over predicted
    predicted_s: float
    facts: tuple  # of (key, word)
    source: str  # a table
    configuration: str  # distinct within the table
    set: str  # what configurations to choose from have in common
    alike: str  # configurations of a set with equal texts have similar errors

    @property
    def key(self):
        return self.source, self.configuration


def residuals_of(scores):
    """Returns the residuals of all comparisons that count, of pairs of a table's name and score."""
    return [
        Residual(math.log(row.measured / row.predicted), row.predicted, tuple(row.facts.items()), name, row.setting,
                 row.set, row.alike)
        for name, score in scores for row in score.comparisons if row.facts
    ]


def quantile(values, fraction):
    """Returns the conformal quantile of (value, weight, configuration), interpolated between the values.

    The i-th of n values with equal weights is at i / (n + 1): the probability that another value, exchangeable with
    them, is below it. Values of one configuration are not exchangeable, configurations are: with other weights, the
    other value has the mean weight of the configurations, each weighted by itself.
    """
    values = sorted(values)
    total, by_configuration = 0.0, {}
    for _, weight, configuration in values:
        total += weight
        by_configuration[configuration] = by_configuration.get(configuration, 0) + weight
    other = sum(weight * weight for weight in by_configuration.values()) / total
    before, places = 0.0, []
    for value, weight, _ in values:
        places.append(((before + (weight + other) / 2) / (total + other), value))
        before += weight
    if fraction <= places[0][0]:
        return places[0][1]
    for (left, low), (right, high) in zip(places, places[1:]):
        if fraction <= right:
            return low + (high - low) * (fraction - left) / (right - left)
    return places[-1][1]


def weighted(rows, total):
    """Returns the error, weight and configuration of each row, with weights that add up to `total`.

    A table of n rows, or a configuration of n runs, weighs as the square root of n.
    """
    tables, runs = Counter(row.source for row in rows), Counter(row.key for row in rows)
    weights = [(tables[row.source] * runs[row.key]) ** -0.5 for row in rows]
    return [(row.error, weight * total / sum(weights), row.key) for row, weight in zip(rows, weights)]


def configurations(rows):
    return len({row.key for row in rows})


def chain(facts):
    """Returns the classes that runs with these facts may be in, from the coarsest on; a class is a tuple of facts."""
    words, out = dict(facts), []
    for level in LEVELS:
        added = tuple((key, words[key]) for key in level if key in words)
        if not out and len(added) < len(level):
            return []
        out.append((out[-1] if out else ()) + added)
    return out


def pairs_of(rows, near):
    """Yields the difference of two runs' errors, their table, their configurations, and whether they are alike.

    Only of configurations of one set that are predicted to be near each other, or of all.
    """
    for i, one in enumerate(rows):
        for two in rows[:i]:
            if one.source != two.source or one.configuration == two.configuration:
                continue
            if not near or (one.set == two.set and abs(math.log(one.predicted_s / two.predicted_s)) < NEAR):
                configurations_of = frozenset((one.configuration, two.configuration))
                yield abs(one.error - two.error), one.source, configurations_of, one.alike == two.alike


def median_of(pairs):
    tables = Counter(table for _, table, *_ in pairs)
    return quantile([(off, tables[table] ** -0.5, i) for i, (off, table, *_) in enumerate(pairs)], 0.5)


def enough(pairs):
    return len({(table, both) for _, table, both, _ in pairs}) >= PAIRS


def difference_errors(rows):
    """Returns the median error of a difference, and the standard deviations between and within groups of alike runs.

    Where configurations to choose from are few, differences are of all configurations, whose errors differ more.
    """
    near = list(pairs_of(rows, True))
    difference = median_of(near if enough(near) else list(pairs_of(rows, False)))
    own, apart = ([pair for pair in near if pair[3] == alike] for alike in (True, False))
    if not (enough(own) and enough(apart)):
        return {"difference": difference, "between_groups": 0.0, "own": difference / MEDIAN_DIFFERENCE}
    within, all_of = median_of(own) / MEDIAN_DIFFERENCE, median_of(apart) / MEDIAN_DIFFERENCE
    return {"difference": difference, "between_groups": math.sqrt(max(0.0, all_of**2 - within**2)), "own": within}


class Classes:
    """The classes of residuals, from the coarsest to the finest."""

    def __init__(self, residuals):
        self.residuals = [row for row in residuals if chain(row.facts)]
        members = {}
        for row in self.residuals:
            for name in chain(row.facts):
                members.setdefault(name, {})[id(row)] = row
        self.rows = {}
        self.tails = {name: TAIL for name in members}
        for name in sorted(members, key=len):
            rows, coarser = list(members[name].values()), self.coarser(name)
            if configurations(rows) >= LEAST and (not coarser or len(rows) <= MOST * len(self.rows[coarser])):
                self.rows[name] = rows
        self.own = {name: [] for name in self.rows}  # the runs that are in no finer class
        for row in self.residuals:
            if self.finest(row.facts):
                self.own[self.finest(row.facts)].append(row)
        for name in sorted(self.rows, key=len, reverse=True):
            own, coarser = self.own[name], self.coarser(name)
            if coarser and len(own) >= LEAST and self.covered(name, lambda row: row.key) < HELD_OUT * len(own):
                del self.rows[name]
                self.own[coarser] += self.own.pop(name)
        for name, own in self.own.items():
            # Runs of a configuration err alike, so that the interval of few configurations has more runs than it says.
            for tail in (TAIL, *OTHER_TAILS):
                self.tails[name] = tail
                if not own or COVERED[0] <= self.covered(name, lambda row: row.key) / len(own) <= COVERED[1]:
                    break
            else:
                self.tails[name] = TAIL

    def coarser(self, name):
        """Returns the next coarser class; None if there is none."""
        return max((of for of in chain(name) if of in self.rows and len(of) < len(name)), key=len, default=None)

    def finest(self, facts):
        """Returns the finest class of a run; None if there is none."""
        return max((name for name in chain(facts) if name in self.rows), key=len, default=None)

    def errors(self, name, without=lambda row: False):
        """Returns the errors of a class with their weights.

        Those of its own runs; where they are of fewer than ENOUGH configurations, the others of the class, or of the
        next coarser one that has more, have the weight of what is missing.
        """
        own = [row for row in self.own[name] if not without(row)]
        missing = ENOUGH - configurations(own)
        if missing <= 0:
            return weighted(own, len(own))
        known = set(map(id, self.own[name]))
        for of in reversed([each for each in chain(name) if each in self.rows and len(each) <= len(name)]):
            others = [row for row in self.rows[of] if id(row) not in known and not without(row)]
            if others:
                return weighted(own, len(own)) + weighted(others, missing)
        return weighted(own, len(own))

    def interval(self, name, without=lambda row: False):
        errors = self.errors(name, without)
        return quantile(errors, self.tails[name]), quantile(errors, 1 - self.tails[name])

    def covered(self, name, part):
        """Returns how many of the own runs are in the interval of the others, those with another `part` of the run."""
        hits = 0
        for of in {part(row) for row in self.own[name]}:
            def left_out(row, of=of):
                return part(row) == of
            if not self.errors(name, left_out):
                continue
            low, high = self.interval(name, left_out)
            hits += sum(low <= row.error <= high for row in self.own[name] if part(row) == of)
        return hits

    def sources(self, name):
        return len({row.source for row in self.rows[name]})

    def document(self, name):
        low, high = self.interval(name)
        out = {"class": dict(name), "rows": len(self.rows[name]), "configurations": configurations(self.rows[name]),
               "sources": self.sources(name)}
        for key, error in (("median", quantile(self.errors(name), 0.5)), ("low", low), ("high", high)):
            out[key] = rounded(math.exp(error))
        out.update({key: rounded(error) for key, error in difference_errors(self.rows[name]).items()})
        if self.own[name]:
            out["coverage"] = round(self.covered(name, lambda row: row.key) / len(self.own[name]), 2)
        return out


def rounded(value):
    return float(f"{value:.4g}")


def errors_json(residuals):
    """Returns the text of the catalogue's file."""
    classes = Classes(residuals)
    sources = len({row.source for row in classes.residuals})
    every = {key: rounded(error) for key, error in difference_errors(classes.residuals).items()}
    source = f"python3 benchmarks/accuracy DATA --write-errors: {len(classes.residuals)} runs of {sources} tables"
    lines = [json.dumps(classes.document(name), ensure_ascii=False) for name in sorted(classes.rows)]
    return (
        f'{{\n  "schema": "sluice.errors/1",\n  "source": {json.dumps(source)},\n  "all": {json.dumps(every)},\n'
        '  "classes": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"
    )


def percent(ratio):
    return f"{100 * (ratio - 1):+.1f} %"


def errors_text(residuals):
    """Returns a table of the classes in Markdown, and how many runs the intervals of other runs cover."""
    classes = Classes(residuals)
    out = (
        "| class | runs | configurations; tables | median | 8 of 10 runs | held out: own runs in it |\n"
        "|---|---|---|---|---|---|\n"
    )
    for name in sorted(classes.rows):
        of, own = classes.document(name), len(classes.own[name])
        covered = f"{100 * of['coverage']:.0f} % of {own}" if own else "-"
        out += (
            f"| {', '.join(word for _, word in name)} | {of['rows']} | {of['configurations']}; {of['sources']} |"
            f" {percent(of['median'])} | {percent(of['low'])} to {percent(of['high'])} | {covered} |\n"
        )

    def total(what, part, names):
        own = sum(len(classes.own[name]) for name in names)
        hits = sum(classes.covered(name, part) for name in names)
        return f"{what}: {100 * hits / own:.1f} % of {own} runs\n" if own else ""

    several = [name for name in classes.rows if classes.sources(name) > 1]
    return (
        out + total("in the intervals of other configurations", lambda row: row.key, classes.rows)
        + total("in the intervals of other tables", lambda row: row.source, several)
        + f"in no class: {sum(not classes.finest(row.facts) for row in residuals)} runs\n"
    )
