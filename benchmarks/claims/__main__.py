"""Runs claims of papers and prints published and predicted values.

    python benchmarks/claims [FILES OR FOLDERS] [--explain] [--json] [--write-scenarios FOLDER]

A claim is a sluice.claim/1 file (docs/formats.md). The exit code does not depend on the differences. Needs the package
sluice.
"""

import argparse
import glob
import json
import os
import re
import sys
import textwrap

from claim import Claim
from results import Row, run_all

import sluice

CLAIMS = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/claims"))


def files_in(paths):
    """Returns the files, with each folder replaced by its JSON files, sorted."""
    out = []
    for path in paths:
        inside = sorted(glob.glob(os.path.join(glob.escape(path), "*.json"))) if os.path.isdir(path) else [path]
        if not inside:
            raise sluice.InputError(f"{path}: expected at least one .json file in this folder")
        out += inside
    return out


def stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def paragraph(what, text):
    return textwrap.fill(f"{what}: {text}", 110, initial_indent="  ", subsequent_indent="    ",
                         break_long_words=False, break_on_hyphens=False) + "\n"


def table_text(claims, explain):
    """Returns the claims with their rows; with `explain` also sources, assumptions, and why predictions differ."""
    rows = [row for _, _, rows in claims for row in rows]

    def width(texts, least=0):
        """Wide lists of slices or names do not determine the width of a column."""
        return max((len(text) for text in texts if len(text) <= 24), default=least)

    name = max(len(row.name) for row in rows)
    measure = max(len(row.kind) for row in rows)
    published = max(len("published"), width(row.published for row in rows))
    ours = width(row.ours for row in rows)
    parts = []
    for claim, _, rows in claims:
        out = f"{stem(claim.file)}: {claim.text}\n"
        if explain:
            out += paragraph("from", claim.source) + (paragraph("assumed", claim.assumed) if claim.assumed else "")
        for row in rows:
            value = row.ours + ("" if row.fits else " *")
            line = (f"  {row.name:<{name}}  {row.kind:<{measure}}  published {row.published or '-':<{published}}"
                    f"  ours {value:<{ours + 2}}  {row.difference}")
            out += line.rstrip(" ") + "\n"
        if explain and claim.why:
            out += paragraph("why", claim.why)
        parts.append(out)
    if not all(row.fits for _, _, rows in claims for row in rows):
        parts.append("* a run does not fit in memory as predicted\n")
    return "\n".join(parts)


def table_json(claims):
    """Returns the document sluice.claims/1."""
    out = []
    for claim, runs, rows in claims:
        texts = {"file": claim.file, "claim": claim.text, "source": claim.source, "assumed": claim.assumed,
                 "why": claim.why}
        one = {key: value for key, value in texts.items() if value}
        one["measures"] = [
            {"name": row.name, "measure": row.kind, **({"published": row.published} if row.published else {}),
             "ours": row.ours, "value": row.value, **({"difference": row.difference} if row.difference else {}),
             "fits": row.fits}
            for row in rows
        ]
        one["runs"] = [
            {"name": name, "iteration_s": run.iteration_s, "peak_bytes": run.peak_bytes,
             **({} if run.fits is None else {"fits": run.fits}), "combinations": run.combinations,
             "scenario": run.scenario}
            for name, run in runs.items()
        ]
        out.append(one)
    return json.dumps({"schema": "sluice.claims/1", "claims": out}, indent=2, ensure_ascii=False) + "\n"


def write_scenarios(claims, folder):
    """Writes one scenario file per run, for `sluice simulate`, with paths relative to the folder."""
    os.makedirs(folder, exist_ok=True)
    for claim, runs, _ in claims:
        for name, run in runs.items():
            scenario = {**run.scenario, "schema": "sluice.scenario/1", "name": f"{claim.text}: {name}"}
            for key in ("model", "cluster", "software"):
                if isinstance(scenario.get(key), str):  # a path, or a name of the catalogue
                    path = os.path.join(os.path.dirname(claim.file), scenario[key])
                    if os.path.exists(path):
                        scenario[key] = os.path.relpath(path, folder)
            word = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
            with open(f"{folder}/{stem(claim.file)}--{word}.json", "w", encoding="utf-8") as file:
                file.write(json.dumps(scenario, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser("claims", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("claims", nargs="*", default=[CLAIMS], help="Claim files, or folders of them (default: examples/claims)")
    add("--explain", action="store_true",
        help="Also print the source and the assumptions of each claim, and why the prediction differs")
    add("--json", action="store_true", help="Print one JSON document (sluice.claims/1) with every run")
    add("--write-scenarios", metavar="FOLDER", help="Also write each run to this folder as a scenario file")
    options = parser.parse_args()
    try:
        read = [Claim(path) for path in files_in(options.claims)]
        claims = [(claim, runs, [Row(claim, measure, runs) for measure in claim.measures])
                  for claim, runs in zip(read, run_all(read))]
        if options.write_scenarios:
            write_scenarios(claims, options.write_scenarios)
        sys.stdout.write(table_json(claims) if options.json else table_text(claims, options.explain))
    except (sluice.InputError, sluice.ScheduleError, OSError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2 if isinstance(error, sluice.InputError) else 4 if isinstance(error, sluice.ScheduleError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
