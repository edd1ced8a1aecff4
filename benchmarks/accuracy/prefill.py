"""Prompts in chunks through pipelines: how the time of a chunk grows with its prefix, and the time of whole prompts."""

import os
import tempfile

from score import Comparison, Score, Skipped

import sluice

KEY = "system model device devices ranks chunk_tokens total_tokens traced power note source".split()
ANY = ("devices", "ranks", "note", "source")  # in which runs of the same chunks may differ
FEWEST = 4  # chunks of which the first half predicts the others


def chunks_of(table, rows):
    """The rows that have the time of a chunk after a prefix, as (prefix, tokens, seconds, row)."""
    out = []
    for row in rows:
        if table.text(row, "prefix_tokens") and table.text(row, "time_ms"):
            prefix, tokens = table.integer(row, "prefix_tokens", 0), table.integer(row, "chunk_tokens", 1)
            out.append((prefix, tokens, table.number(row, "time_ms", 1e-6, 1e9) / 1e3, row))
    return sorted(out)


def cut(chunks, measured_ranks, ranks, total):
    """Returns the document of ``sluice slice --times`` for slices as long as the chunks on a number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "chunks.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write("tokens,context,seconds,ranks\n")
            file.writelines(f"{tokens},{prefix},{seconds},{measured_ranks}\n" for prefix, tokens, seconds, _ in chunks)
        scenario = sluice.Scenario(pp=ranks, seq_length=total)
        return sluice.slice(scenario, times=path, slices=-(-total // chunks[0][1]))


def later_chunks(table, chunks, ranks, total, setting):
    """Compares the later half of the chunks with what the earlier half predicts."""
    half = len(chunks) // 2
    fit = cut(chunks[:half], ranks, ranks, total)["chunk_times"]
    for prefix, tokens, seconds, row in chunks[half:]:
        predicted = (fit["fixed_s"] + fit["per_context_s"] * prefix + fit["per_token_s"] * tokens
                     + fit["attention_s"] * (2 * prefix + tokens) * tokens)
        yield Comparison("chunk after a longer prefix", table.place(row), setting, seconds, predicted, "s")


def score_prefill(table):
    """Predicts later chunks from earlier ones, and whole prompts from the chunks on as many ranks and on others."""
    score, runs, measured = Score(), {}, {}
    for row in range(len(table)):
        runs.setdefault(tuple(table.text(row, column) for column in KEY), []).append(row)

    def each_run(compare):
        for key, rows in runs.items():
            try:
                score.add(*compare(key, rows))
            except sluice.InputError as error:
                score.add(Skipped(table.place(rows[0]), str(error)))

    def chunks(key, rows):
        found = chunks_of(table, rows)
        if len(found) < 2:
            return [Skipped(table.place(rows[0]), "no times of chunks after prefixes of different length")]
        ranks, total = table.integer(rows[0], "ranks", 1), table.integer(rows[0], "total_tokens", 1)
        measured[key] = found, ranks
        setting = f"{key[0]} {key[1]}, {table.text(rows[0], 'note')}"
        return later_chunks(table, found, ranks, total, setting) if len(found) >= FEWEST else []

    def prompts(key, rows):
        out, same = [], [value for name, value in zip(KEY, key) if name not in ANY]
        for other, (found, measured_ranks) in measured.items() if table.text(rows[0], "e2e_s") else ():
            if same != [value for name, value in zip(KEY, other) if name not in ANY]:
                continue
            ranks, total = table.integer(rows[0], "ranks", 1), table.integer(rows[0], "total_tokens", 1)
            group = "prompt from its chunks" if ranks == measured_ranks else "prompt from chunks on other ranks"
            setting = f"{key[0]} {key[1]}, {ranks} ranks, chunks on {measured_ranks}"
            predicted = cut(found, measured_ranks, ranks, total)["even_s"]
            out.append(Comparison(group, table.place(rows[0]), setting, table.number(rows[0], "e2e_s", 1e-6, 1e9),
                                  predicted, "s"))
        return out

    each_run(chunks)
    each_run(prompts)
    return score
