"""A page with predicted against measured values of every table."""

import math

from score import fits_text, row_of, summaries

SIZE = 420  # px, of a plot without its margins
MARGIN = 72  # px
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; background: #fff; color: #1c2024; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1em 0; }
svg text { fill: currentColor; }
th, td { border-bottom: 1px solid #ddd; padding: 2px 10px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; }
svg { display: block; max-width: 100%; height: auto; }
circle { fill-opacity: .6; }
circle:hover, circle:focus { stroke: #000; stroke-width: 2; fill-opacity: 1; outline: none; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .4em; }
@media (prefers-color-scheme: dark) {
  body { background: #14171a; color: #e6e9ec; }
  circle:hover, circle:focus { stroke: #fff; }
}
"""


def escape(text):
    for plain, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(plain, entity)
    return text


def plot(points, groups):
    """Returns the SVG of the points of one unit, on logarithmic axes with the same scale."""
    values = [value for point in points for value in (point.measured, point.predicted)]
    low, high = min(values) / 1.2, max(values) * 1.2

    def at(value):
        return SIZE * math.log(value / low) / math.log(high / low)

    def ratio_line(factor, style):
        begin, end = max(low, low / factor), min(high, high / factor)
        return (
            f'<line x1="{at(begin):.1f}" y1="{SIZE - at(factor * begin):.1f}" x2="{at(end):.1f}"'
            f' y2="{SIZE - at(factor * end):.1f}" {style}/>\n'
        )

    full = SIZE + MARGIN + 20
    out = (
        f'<svg viewBox="{-MARGIN} -10 {full} {full}" width="{full}" role="img" font-size="12" '
        f'aria-label="predicted against measured">\n<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>\n'
    )
    out += ratio_line(1, 'stroke="#888"')
    for factor in (1.1, 1 / 1.1):
        out += ratio_line(factor, 'stroke="#aaa" stroke-dasharray="4 3"')
    power = 10.0 ** math.floor(math.log10(low))
    while power <= high:
        for value in (power, 2 * power, 5 * power):
            if low <= value <= high:
                x = at(value)
                out += f'<text x="{x:.1f}" y="{SIZE + 18}" text-anchor="middle">{value:g}</text>\n'
                out += f'<text x="-8" y="{SIZE - x + 4:.1f}" text-anchor="end">{value:g}</text>\n'
        power *= 10
    unit = escape(points[0].unit)
    out += f'<text x="{SIZE / 2:.0f}" y="{SIZE + 40}" text-anchor="middle">measured, {unit}</text>\n'
    out += f'<text transform="translate(-60 {SIZE / 2:.0f}) rotate(-90)" text-anchor="middle">predicted</text>\n'
    for point in points:
        color = COLORS[groups.index(point.group) % len(COLORS)]
        title = "\n".join(escape(text) for text in (point.group, point.place, point.setting))
        out += (
            f'<circle cx="{at(point.measured):.1f}" cy="{SIZE - at(point.predicted):.1f}" r="4" fill="{color}"'
            f' tabindex="0"><title>{100 * point.error:+.2f} %: measured {point.measured:.5g} {unit}, predicted'
            f" {point.predicted:.5g} {unit}\n{title}</title></circle>\n"
        )
    return out + "</svg>\n"


def plots(score):
    """Returns one plot per unit: quantities of different units have no common axis."""
    groups = list(dict.fromkeys(row.group for row in score.comparisons))
    out = "<p>"
    for i, group in enumerate(groups):
        color = COLORS[i % len(COLORS)]
        out += f'<span class="key" style="background:{color}"></span>{escape(group)} &nbsp; '
    out += "</p>\n"
    for unit in dict.fromkeys(row.unit for row in score.comparisons):
        points = [row for row in score.comparisons if row.unit == unit and row.measured > 0 and row.predicted > 0]
        if points:
            out += plot(points, groups)
    return out


def score_page(scores):
    """Returns a self-contained HTML page: the summaries, and predicted against measured values of every table."""
    out = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>Accuracy of predictions</title>\n"
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>Accuracy of predictions</h1>\n<p>Each point is a row: hover over"
        " it for its values. The line is predicted = measured, the dashed lines are 10 % above and below.</p>\n"
        '<div class="wide"><table>\n'
        '<tr><th>table</th><th class="text">error of</th><th>GPU</th><th>precision</th><th>rows</th><th>mean</th>'
        '<th>bias</th><th>worst</th><th class="text">worst row</th></tr>\n'
    )
    for name, score in scores:
        for of in summaries(score):
            out += (
                f'<tr><td>{escape(name)}</td><td class="text">{escape(of.group)}</td><td>{escape(of.gpu) or "-"}</td>'
                f"<td>{escape(of.precision) or '-'}</td><td>{len(of.rows)}</td><td>{100 * of.mean:.2f} %</td>"
                f"<td>{100 * of.signed:+.2f} %</td><td>{100 * of.worst:.2f} %</td>"
                f'<td class="text">{escape(row_of(of.worst_row))}</td></tr>\n'
            )
    out += "</table></div>\n"
    for name, score in scores:
        fits = fits_text(score)
        out += f"<h2>{escape(name)}</h2>\n" + (f"<p>{fits}</p>\n" if fits else "") + plots(score)
        if score.skipped:
            out += f"<p>{len(score.skipped)} rows skipped</p>\n"
    return out + "</body>\n</html>\n"
