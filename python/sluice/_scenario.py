"""Scenarios: what to predict."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _core
from ._keys import ScenarioKeys

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Source = Union[str, "os.PathLike[str]", Mapping[str, Any], "Scenario", None]

_NAMES = {
    name.strip()[2:].replace("-", "_"): name.strip()[2:]
    for names, _, _, _ in _core.scenario_keys()
    for name in names.split(",")
}

_WHOLE_LIST = 7  # of SettingKind
_KINDS = {name.strip()[2:]: kind for names, _, kind, _ in _core.scenario_keys() for name in names.split(",")}


class Scenario:
    """A configuration to predict: model, cluster, parallelism, schedule and costs.

    ``source`` is a scenario file, a configuration of another framework (a shell script of Megatron-LM, a TOML file of
    torchtitan, a YAML file of NeMo), the document of a scenario as a dictionary, another scenario, or nothing. Keywords
    are the flags of ``sluice simulate`` with underscores, and override the source: ``pp=4``, ``seq_length=8192``. A
    name with a slash is a path in the scenario (docs/formats.md): ``**{"parallelism/zero": 1}``. Besides:

    - ``model`` may be a dictionary, such as a configuration of Hugging Face.
    - ``uniform``: seconds of ops, as ``{"f": 1, "b": 1, "w": 1, "comm": 0.1}``.
    - ``cost``: "analytic", "uniform", or a cost file.
    - ``slow_rank``: factors by rank, ``{7: 1.1}``; ``slow_link``: factors by pair of ranks, ``{(0, 1): 2}``.

    Raises InputError for wrong values and TypeError for an unknown keyword.
    """

    __slots__ = ("_document", "_folder")
    _document: _core.ScenarioDocument
    _folder: str

    def __init__(self, source: Source = None, /, **keys: Unpack[ScenarioKeys]) -> None:
        self._folder = ""
        if isinstance(source, Scenario):
            self._document = _core.ScenarioDocument(source._document)
            self._folder = source._folder
        elif source is None:
            self._document = _core.ScenarioDocument()
        elif isinstance(source, Mapping):
            self._document = _core.ScenarioDocument.from_text(json.dumps(source), "", "scenario")
        else:
            path = os.fspath(source)
            self._document = _core.ScenarioDocument.from_file(path)
            self._folder = os.path.dirname(path)
        self._set(keys)

    @classmethod
    def from_json(
        cls, text: str, folder: str | os.PathLike[str] = "", source: str = "scenario", **keys: Unpack[ScenarioKeys]
    ) -> Self:
        """Returns the scenario in a JSON text, which errors name ``source``; paths in it are relative to ``folder``."""
        return cls._of(_core.ScenarioDocument.from_text(text, os.fspath(folder), source), os.fspath(folder), keys)

    @classmethod
    def from_megatron(
        cls, arguments: str | Sequence[str], source: str = "--megatron-args", **keys: Unpack[ScenarioKeys]
    ) -> Self:
        """Returns the scenario of arguments of Megatron-LM, as one text or a list of words. Keywords override it.

        ``source`` names the arguments in errors.
        """
        if not isinstance(arguments, str):
            arguments = " ".join("'" + word.replace("'", "'\\''") + "'" for word in arguments)
        return cls._of(_core.ScenarioDocument.from_megatron(arguments, source), "", keys)

    @classmethod
    def _of(cls, document: _core.ScenarioDocument, folder: str, keys: Mapping[str, Any]) -> Self:
        self = cls.__new__(cls)
        self._document = document
        self._folder = folder
        self._set(keys)
        return self

    def replace(self, **keys: Unpack[ScenarioKeys]) -> Scenario:
        """Returns a copy with other values of some keys."""
        return Scenario(self, **keys)

    def _with_flags(self, words: Sequence[str]) -> Scenario:
        """Returns a copy with the values of flags of the command: "--pp", "4", "--sequence-parallel"."""
        out = Scenario(self)
        for i, word in enumerate(words):
            if not word.startswith("--"):
                continue
            value = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else "true"
            out._document.set(word[2:], f"[{value}]" if _KINDS.get(word[2:]) == _WHOLE_LIST else value)
        return out

    @property
    def notes(self) -> list[str]:
        """What in the configuration of another framework is not modeled or unknown, one line each."""
        return self._document.notes

    def check(self) -> None:
        """Raises InputError for the first wrong value, or the first that is missing for any prediction."""
        self._document.check()

    def to_json(self) -> str:
        """Returns the scenario as the text of a scenario file."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Returns the document of the scenario."""
        document: dict[str, Any] = json.loads(self._document.text())
        return document

    def __repr__(self) -> str:
        return f"Scenario({self.to_dict()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scenario) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._document.text(), self._folder)

    def _set(self, keys: Mapping[str, Any]) -> None:
        for key, value in keys.items():
            if value is None:
                continue
            for name, text in _settings(key, value):
                self._document.set(name, text)


def _restored(text: str, folder: str) -> Scenario:
    return Scenario.from_json(text, folder)


def _settings(key: str, value: Any) -> list[tuple[str, str]]:
    """Returns the keys and values for ScenarioDocument.set of one keyword."""
    if key == "uniform":
        document = _uniform(value) if isinstance(value, str) else dict(value)
        return [("/cost", json.dumps({"kind": "uniform", **document}))]
    if key == "stage_weights":
        return [("/cost/stage_weights", json.dumps(list(value)))]
    if key == "cost":
        if value in ("analytic", "uniform"):
            return [("/cost", json.dumps({"kind": value}))]
        return [("/cost", json.dumps({"kind": "fitted", "file": os.path.abspath(os.fspath(value))}))]
    if key == "slow_rank":
        rows = [{"rank": rank, "factor": factor} for rank, factor in value.items()]
        return [("/perturbation/slow_ranks", json.dumps(rows))]
    if key == "slow_link":
        rows = [{"between": list(ranks), "factor": factor} for ranks, factor in value.items()]
        return [("/perturbation/slow_links", json.dumps(rows))]
    if "/" not in key and key not in _NAMES:
        near = difflib.get_close_matches(key, [*_NAMES, "uniform", "cost"], 1)
        raise TypeError(f"unexpected keyword '{key}'" + (f" (did you mean '{near[0]}'?)" if near else ""))
    return [(_NAMES.get(key, key), _text(value))]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Sequence):
        value = list(value)
    elif isinstance(value, Mapping):
        value = dict(value)
    elif hasattr(value, "item"):  # a number of numpy
        value = value.item()
    return json.dumps(value)


def _uniform(text: str) -> dict[str, Any]:
    """Returns the times in "f=1,b=1,w=1,comm=0.1"; "f=4:5:6" lists the times of slices."""
    times: dict[str, Any] = {}
    for part in text.split(","):
        name, _, numbers = part.partition("=")
        try:
            values = [float(number) for number in numbers.split(":")]
        except ValueError:
            raise _core.InputError(f"uniform: expected times such as f=1,b=1,w=1, got '{text}'") from None
        times[name] = values[0] if len(values) == 1 else values
    return times
