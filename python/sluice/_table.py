"""HTML tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table of dictionaries, with the columns in the order in which they first occur."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in columns) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
