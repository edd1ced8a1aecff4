"""Writes python/sluice/_keys.py, the types of the keywords of Scenario, from the flags of the command.

Run it with the package installed after a flag was added: python python/write_keys.py
"""

import pathlib
import sys

from sluice import _core

TYPES = (
    "int",
    "float",
    "bool",
    "str",
    "str",
    "Union[str, os.PathLike[str], Mapping[str, Any]]",
    "Union[str, os.PathLike[str], Mapping[str, Any]]",
    "Sequence[int]",
    "Sequence[float]",
    "Sequence[str]",
)

HEAD = '''"""The keywords of Scenario. Written by python/write_keys.py."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Union


class SizeKeys(TypedDict, total=False):
    """All keywords but the schedule."""

    cost: Union[str, os.PathLike[str]]
    uniform: Union[str, Mapping[str, Any]]
    slow_rank: Mapping[int, float]
    slow_link: Mapping[tuple[int, int], float]
'''

TAIL = '''

class ScenarioKeys(SizeKeys, total=False):
    """All keywords."""

    schedule: Union[str, os.PathLike[str]]
'''


def text() -> str:
    """Returns the text of the file."""
    lines = []
    for names, _, kind, _ in _core.scenario_keys():
        for name in names.split(","):
            key = name.strip()[2:].replace("-", "_")
            if key != "schedule":
                lines.append(f"    {key}: {TYPES[kind]}\n")
    return HEAD + "".join(lines) + TAIL


if __name__ == "__main__":
    path = pathlib.Path(__file__).parent / "sluice" / "_keys.py"
    path.write_text(text())
    sys.stdout.write(f"{path}\n")
