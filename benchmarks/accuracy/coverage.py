"""Which models and rows of tables can be predicted, and why others cannot."""


def coverage_text(name, table, score):
    """Returns how many rows and distinct models of a table were predicted, and a line for each row that was not."""
    reasons = {each.place: each.reason for each in score.skipped}
    rows = {table.place(row): table.text(row, "model") for row in range(len(table))}
    by_model = {}
    for place, model in rows.items():
        by_model.setdefault(model, []).append(place not in reasons)
    predicted = sum(map(sum, by_model.values()))
    models = sum(map(any, by_model.values()))
    out = f"{name}: {predicted} of {len(rows)} rows and {models} of {len(by_model)} models are predicted\n"
    for model in sorted(by_model):
        out += f"  {sum(by_model[model]):>3} of {len(by_model[model]):>3}  {model}\n"
    for place, model in rows.items():
        if place in reasons:
            out += f"  not predicted: {model}: {reasons[place]}\n"
    return out
