"""Models of PyTorch modules: ``sluice.torch.model``."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import torch

from ._trace import (
    ATTENTION,
    BATCHED,
    COLLECTIVE,
    FUSED,
    GEMM,
    GROUPED,
    MEMORY,
    SCAN,
    Kernel,
    Op,
    Recording,
    Use,
    error,
    record,
)

_GEMMS = (GEMM, GROUPED, BATCHED)
_MOST_TENSORS = 48  # of a traced block


class Model(dict[str, Any]):
    """A model as a dictionary ("sluice.model/2", docs/formats.md), for ``sluice.Scenario(model=...)`` and its users."""

    def to_json(self) -> str:
        """Returns the text of a model file."""
        return json.dumps(self, indent=1) + "\n"

    def write(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes a model file, for ``--model`` of the command."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_json())


def model(
    module: Any,
    example_inputs: Union[Any, Sequence[Any], Callable[[int], Sequence[Any]]],
    *,
    name: str = "",
    layers: Union[str, Sequence[str], None] = None,
    vocab: int = 0,
    tp: int = 1,
    dtype: Any = torch.bfloat16,
    kernels: Union[Mapping[str, Kernel], None] = None,
    windows: Union[Mapping[str, int], None] = None,
    token_dim: int = 1,
) -> Model:
    """Returns a model of any PyTorch module, to predict, plan and cut like others.

    A forward and a backward run on fake tensors, which needs neither weights (the module may be on the device "meta")
    nor a GPU. What is recorded becomes one kind of layer per list of equal ops. Adjacent elementwise ops and reductions
    count as one kernel, and what it computes on the way is not stored, as torch.compile does; the head's norm, GEMM and
    loss, and the word embedding, are those of other models.

    - ``example_inputs``: arguments of the module, with tokens in dimension ``token_dim``, of a realistic number; the
      dimensions before it are the batch. The module runs a second time with twice the tokens. Arguments whose tokens
      are elsewhere are given by a function of the number of tokens per sequence.
    - ``layers``: the path of the container of the layers ("model.layers"), or the paths of all layers. By default, the
      container whose children of one class have the most parameters.
    - ``vocab``: the number of words, for modules without an embedding.
    - ``tp``: the size of the tensor-parallel group for which the module is sharded (DTensor, or local shards).
    - ``dtype``: the type of parameters that are stored in 32 bits; None leaves them.
    - ``kernels``: the costs of ops that PyTorch does not know, by name: {"mamba::scan": Kernel(...)}.
    - ``windows``: keys per query of sliding windows, by a part of the module's path; masks are otherwise causal.

    Raises InputError for an op without a known cost, sizes that are not proportional to the tokens, and routing whose
    shapes depend on data. Not seen: what an autograd.Function keeps on its context without save_for_backward.
    """
    paths = _layer_paths(module, layers)
    both: list[Recording] = []
    for factor in (1, 2):
        inputs = _scaled(example_inputs, factor, token_dim)
        both.append(record(module, inputs, paths, kernels or {}, windows or {}, dtype, token_dim))
    _check_proportional(*both)
    return _Builder(both[1], paths, name or type(module).__name__, vocab, tp).model()


def _layer_paths(module: Any, layers: Union[str, Sequence[str], None]) -> list[str]:
    if layers is not None and not isinstance(layers, str):
        return list(layers)
    path = layers
    containers = {
        path: each
        for path, each in module.named_modules()
        if isinstance(each, (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)) and len(each) > 0
    }
    if path is not None:
        if path not in containers:
            near = ", ".join(containers) or "none"
            raise error(f"layers: expected the path of a container of layers ({near}), got '{path}'")
    elif not containers:
        raise error("layers: the module has no ModuleList, ModuleDict or Sequential; give the paths of its layers")
    else:
        path = max(containers, key=lambda each: _weight(containers[each]))
    prefix = path + "." if path else ""
    return [prefix + child for child, _ in containers[path].named_children()]


def _weight(container: Any) -> int:
    """Returns the number of parameters in the children of the most common class."""
    common = Counter(type(each) for each in container.children()).most_common(1)[0][0]
    return sum(p.numel() for each in container.children() if type(each) is common for p in each.parameters())


def _scaled(inputs: Any, factor: int, token_dim: int) -> list[Any]:
    """Returns example inputs with ``factor`` times the tokens per sequence."""
    if callable(inputs):
        return list(inputs(1024 * factor))
    values = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
    first = next((each for each in values if torch.is_tensor(each) and each.dim() > token_dim), None)
    if first is None or factor == 1:
        return values
    tokens = first.shape[token_dim]

    def scale(each: Any) -> Any:
        if not torch.is_tensor(each) or each.dim() <= token_dim or each.shape[token_dim] != tokens:
            return each
        shape = list(each.shape)
        shape[token_dim] *= factor
        return torch.empty(shape, dtype=each.dtype, device="meta")

    return [scale(each) for each in values]


def _flops(op: Op) -> float:
    batch, m, k, n = op.shape
    return 2.0 * (1 if op.kind == GROUPED else batch) * m * k * n


def _bytes(op: Op) -> int:
    return sum(use.bytes for use in op.reads) + sum(use.bytes for use in op.writes)


def _check_proportional(one: Recording, two: Recording) -> None:
    factor = two.tokens / one.tokens
    for a, b in zip(one.ops, two.ops):
        if (a.name, a.path, a.forward) != (b.name, b.path, b.forward):
            raise error(
                f"{b.where()}: with {factor:g} times the tokens another op runs than {a.where()}; loops over tokens or "
                "chunks are not supported: declare the kernel that replaces them"
            )
        if not a.active and a.slot != int(a.slot):
            continue  # tables outside of layers
        if a.kind in _GEMMS:
            if _flops(b) != factor * _flops(a):
                hint = "use scaled_dot_product_attention" if a.kind == BATCHED else "expected one proportional to them"
                raise error(f"{a.where()}: {a.shape} becomes {b.shape} with {factor:g} times the tokens; {hint}")
        elif a.kind == SCAN and abs(b.flops - factor * a.flops) > 0.01 * b.flops:
            raise error(f"{a.where()}: {a.flops:g} FLOPs become {b.flops:g} with {factor:g} times the tokens")
        elif a.kind != ATTENTION and _bytes(b) > 1.01 * factor * _bytes(a) + 4096:
            raise error(
                f"{a.where()}: {_bytes(a)} bytes become {_bytes(b)} with {factor:g} times the tokens; for attention, "
                "use scaled_dot_product_attention"
            )
    if len(one.ops) != len(two.ops):
        longer = max(one.ops, two.ops, key=len)[min(len(one.ops), len(two.ops))]
        raise error(f"{longer.where()}: runs only with another number of tokens; loops over tokens are not supported")


class _Builder:
    """Makes a model of a recording."""

    def __init__(self, recording: Recording, paths: Sequence[str], name: str, vocab: int, tp: int) -> None:
        self.recording = recording
        self.paths = paths
        self.name = name
        self.tp = tp
        self._tokens = recording.tokens
        missing = [path for i, path in enumerate(paths) if i not in recording.layer_inputs]
        if missing:
            raise error(f"layers: {missing[0]} did not run")
        self._embedding = self._word_embedding()
        self._head = self._last_gemm()
        self.vocab = vocab or self._vocabulary()
        self._producer: dict[int, int] = {}  # index of the op that wrote a storage last in the forward
        self._group_of: dict[int, int] = {}  # by index of an op
        self._groups: list[list[int]] = []
        self._readers: dict[int, list[int]] = {}  # indices of ops by storage
        self._random = {use.storage for op in recording.ops if op.random for use in op.writes}
        self._connect()

    def model(self) -> Model:
        count = len(self.paths)
        blocks = [self._block(layer) for layer in range(count)]
        texts: dict[str, str] = {}
        kinds: dict[str, Any] = {}
        order: list[str] = []
        for block in blocks:
            text = json.dumps(block)
            if text not in texts:
                texts[text] = "layer" if not texts else f"layer {len(texts) + 1}"
                kinds[texts[text]] = [block]
            order.append(texts[text])
        runs: list[Any] = []
        for kind in order:
            if runs and runs[-1]["layers"] == [kind]:
                runs[-1]["repeat"] += 1
            else:
                runs.append({"repeat": 1, "layers": [kind]})
        norm = self._final_norm()
        return Model(
            name=self.name,
            hidden_size=self.recording.hidden,
            vocab_size=self.vocab,
            tied_embeddings=self._head != "" and self._head == self._embedding,
            rms_norm=norm <= self.recording.hidden,
            kinds=kinds,
            layers=runs,
        )

    # What is outside of layers.

    def _outside(self, after: bool) -> list[Op]:
        last = len(self.paths) - 0.5
        return [op for op in self.recording.ops if op.forward and (op.slot == last if after else op.slot == -0.5)]

    def _word_embedding(self) -> str:
        for op in self._outside(after=False):
            if op.name == "aten::embedding":
                names = [name for name, each in self.recording.parameters.items() if _is_read(op, each)]
                if names:
                    return names[0]
        return ""

    def _last_gemm(self) -> str:
        gemms = [op.weight for op in self._outside(after=True) if op.kind in _GEMMS and op.weight]
        if len(set(gemms)) > 1:
            raise error(f"{gemms[0]}: a GEMM after the last layer other than the head's is not supported")
        return gemms[-1] if gemms else ""

    def _vocabulary(self) -> int:
        name = self._embedding or self._head
        if not name:
            raise error("the module has no embedding: give the size of the vocabulary (vocab=)")
        sizes = [int(size) for size in self.recording.parameters[name].shape]
        sizes.remove(self.recording.hidden) if self.recording.hidden in sizes else sizes.pop()
        return sizes[0] * (self.tp if name not in self.recording.replicated else 1)

    def _final_norm(self) -> int:
        last = len(self.paths) - 0.5
        names = [name for name, slot in self.recording.used.items() if slot == last and name != self._head]
        count = sum(int(self.recording.parameters[name].numel()) for name in names)
        if count > 2 * self.recording.hidden:
            raise error(f"{', '.join(names)}: {count} parameters after the last layer are not those of a norm")
        return count

    def _target(self, op: Op) -> int:
        """Returns the layer that an op belongs to, -1 for none."""
        if op.slot == int(op.slot):
            return int(op.slot)
        layer = int(op.slot + 0.5)
        if layer == len(self.paths) or not op.active:
            return -1
        if self._embedding and op.path and op.path == self._embedding.rpartition(".")[0]:
            return -1
        if op.name in ("aten::embedding", "aten::embedding_dense_backward") and self._embedding:
            table = self.recording.parameters[self._embedding]
            size = table.numel() * table.element_size()
            if _is_read(op, table) or any(use.bytes == size for use in op.writes):
                return -1
        return layer

    # The graph of ops and fused kernels.

    def _connect(self) -> None:
        """Groups elementwise ops and reductions into kernels: those that depend on each other or read the same, without
        other kinds of ops between them, which raise the level of what depends on them."""
        self._targets = [self._target(op) for op in self.recording.ops]
        producers: dict[int, int] = {}
        levels: dict[int, int] = {}  # by storage
        keys: dict[int, tuple[int, bool, int]] = {}  # of groups
        reading: dict[Any, int] = {}  # an op that reads a part of a storage, by key of its group and part
        for i, op in enumerate(self.recording.ops):
            level = max((levels.get(use.storage, 0) for use in op.reads), default=0)
            for use in op.reads:
                self._readers.setdefault(use.storage, []).append(i)
            if op.kind == FUSED:
                key = (self._targets[i], op.forward, level)
                before = {self._group_of.get(producers.get(use.storage, -1), -1) for use in op.reads}
                shared = [(use.storage, use.offset) for use in op.reads if op.active and use.storage in producers]
                before |= {self._group_of[reading[key, each]] for each in shared if (key, each) in reading}
                before -= {-1}
                reading.update({(key, each): i for each in shared})
                self._join(i, sorted(group for group in before if keys[group] == key))
                keys[self._group_of[i]] = key
            for use in op.writes:
                levels[use.storage] = level if op.kind == FUSED else level + 1
                producers[use.storage] = i
                if op.forward:
                    self._producer[use.storage] = i
        for group in reversed(range(len(self._groups))):
            self._join_only_reader(group)

    def _join_only_reader(self, group: int) -> None:
        """Merges a kernel into the one that alone reads its results."""
        members = self._groups[group]
        if not members:
            return
        key = self._key(members[0])
        readers = {
            reader
            for i in members
            for use in self.recording.ops[i].writes
            for reader in self._readers.get(use.storage, ())
            if reader > i and self.recording.ops[reader].forward == key[1]
        }
        targets = {self._group_of.get(reader, -1) for reader in readers} - {group}
        if len(targets) != 1 or -1 in targets:
            return
        target = targets.pop()
        if self._key(self._groups[target][0]) == key:
            self._groups[target] = sorted(self._groups[target] + members)
            self._groups[group] = []
            self._group_of.update({i: target for i in members})

    def _key(self, i: int) -> tuple[int, bool]:
        return self._targets[i], self.recording.ops[i].forward

    def _join(self, i: int, groups: Sequence[int]) -> None:
        if not groups:
            self._groups.append([])
            groups = [len(self._groups) - 1]
        first = groups[0]
        for other in groups[1:]:
            self._groups[first] += self._groups[other]
            for each in self._groups[other]:
                self._group_of[each] = first
            self._groups[other] = []
        self._groups[first].append(i)
        self._group_of[i] = first

    def _stays(self, storage: int) -> bool:
        """Whether a tensor of the forward is written to memory: the others are inside of a fused kernel."""
        producer = self._producer.get(storage)
        if producer is None:
            return True
        group = self._group_of.get(producer)
        if group is None or storage in self._random:
            return True
        return any(
            self.recording.ops[i].forward and self._group_of.get(i) != group for i in self._readers.get(storage, ())
        ) or storage in self.recording.layer_inputs.values()

    def _sources(self, storage: int, seen: Union[set[int], None] = None) -> set[int]:
        """Returns the tensors in memory from which a tensor of the forward is computed again, or itself."""
        seen = set() if seen is None else seen
        if storage in seen:
            return set()
        seen.add(storage)
        if self._stays(storage):
            return {storage}
        op = self.recording.ops[self._producer[storage]]
        return {source for use in op.reads for source in self._sources(use.storage, seen)}

    def _moved(self, group: Sequence[int]) -> float:
        """Returns the bytes per token that a fused kernel reads and writes."""
        ops = [self.recording.ops[i] for i in group]
        inside = set(group)
        written: set[int] = set()
        read: dict[tuple[int, int], Use] = {}
        for op in ops:
            for use in op.reads:
                if use.storage not in written:
                    for each in self._read_instead(op, use):
                        key = (each.storage, each.offset)
                        if key not in read or read[key].bytes < each.bytes:
                            read[key] = each
            written.update(use.storage for use in op.writes)
        parts: dict[int, int] = Counter()
        wholes: dict[int, int] = {}
        for use in read.values():
            parts[use.storage] += use.bytes
            wholes[use.storage] = use.whole
        total = sum(min(parts[storage], wholes[storage]) for storage in parts)
        results = {use.storage: use.bytes for op in ops for use in op.writes}
        for storage, size in results.items():
            outside = [i for i in self._readers.get(storage, ()) if i not in inside]
            if ops[0].forward:
                total += size if self._stays(storage) else 0
            elif outside or not any(i in inside for i in self._readers.get(storage, ())):
                total += size
        return total / self._tokens

    def _read_instead(self, op: Op, use: Use) -> list[Use]:
        if op.forward or self._stays(use.storage):
            return [use]
        sizes = []
        for source in self._sources(use.storage):
            size = self._size(source)
            sizes.append(Use(source, size, 0, size))
        return sizes

    def _size(self, storage: int) -> int:
        producer = self._producer.get(storage)
        if producer is not None:
            return next(use.whole for use in self.recording.ops[producer].writes if use.storage == storage)
        reader = self._readers[storage][0]
        return next(use.whole for use in self.recording.ops[reader].reads if use.storage == storage)

    # Blocks.

    def _relative(self, path: str, layer: int) -> str:
        own = self.paths[layer]
        if path == own:
            return "layer"
        return path[len(own) + 1 :] if path.startswith(own + ".") else path or "module"

    def _block(self, layer: int) -> dict[str, Any]:
        entries: list[dict[str, Any]] = []
        done: set[int] = set()
        flops = {True: 0.0, False: 0.0}
        for i, op in enumerate(self.recording.ops):
            if self._targets[i] != layer:
                continue
            where = self._relative(op.path, layer)
            if op.kind in _GEMMS:
                flops[op.forward] += _flops(op)
                if op.forward:
                    entries.append(self._gemm(op, layer))
            elif op.kind == ATTENTION:
                if op.forward:
                    entries.append(self._attention(op, where))
            elif op.kind == SCAN:
                entries.append(self._scan(op, where))
            elif op.kind == COLLECTIVE:
                size = max(use.bytes for use in (*op.reads, *op.writes)) / self._tokens
                entries.append({"op": op.detail, "name": where, "forward" if op.forward else "backward": size})
            elif op.kind == MEMORY:
                self._add_memory(entries, where, op.forward, _bytes(op) / self._tokens)
            elif self._group_of[i] not in done:
                done.add(self._group_of[i])
                self._add_memory(entries, where, op.forward, self._moved(sorted(self._groups[self._group_of[i]])))
        if flops[False] > 2.001 * flops[True]:
            times = flops[False] / flops[True] if flops[True] > 0 else float("inf")
            raise error(
                f"{self.paths[layer]}: the backward has {times:.3g} times the GEMMs of the forward, "
                "more than 2: trace without activation checkpointing; recomputation is a setting of the scenario"
            )
        return {
            "block": "traced",
            "tensor_ranks": self.tp,
            "parameters": self._parameters(layer, {op.weight: op for op in self._gemms(layer)}),
            "ops": entries,
            "tensors": self._tensors(layer),
        }

    def _gemms(self, layer: int) -> list[Op]:
        ops = self.recording.ops
        own = (op for i, op in enumerate(ops) if self._targets[i] == layer and op.forward)
        return [op for op in own if op.kind in _GEMMS and op.weight]

    def _gemm(self, op: Op, layer: int) -> dict[str, Any]:
        batch, m, k, n = op.shape
        if not op.weight:
            name = self._relative(op.path, layer)
            return {"op": "batched_gemm", "name": name, "m": m, "k": k, "n": n, "batch": batch / self._tokens}
        shape = [int(size) for size in self.recording.parameters[op.weight].shape]
        if op.kind == GEMM and m in shape and n not in shape:
            m, n = n, m  # the weight is on the left
        rows = m * batch / self._tokens if op.kind == BATCHED else m / self._tokens
        name = self._relative(op.weight, layer)
        name = name[: -len(".weight")] if name.endswith(".weight") else name
        out: dict[str, Any] = {"op": "gemm", "name": name, "k": k, "n": n}
        if rows != 1:
            out["rows"] = rows
        if op.kind != GEMM:
            out["experts"] = batch
        return out

    @staticmethod
    def _attention(op: Op, where: str) -> dict[str, Any]:
        heads, kv_heads, size, value_size = op.shape
        out = {"op": "attention", "name": where, "heads": heads, "kv_heads": kv_heads, "head_dim": size}
        if value_size != size:
            out["value_head_dim"] = value_size
        if op.window > 0:
            out["window"] = op.window
        return out

    def _scan(self, op: Op, where: str) -> dict[str, Any]:
        out: dict[str, Any] = {"op": "scan", "name": where, "fraction": op.fraction}
        out["flops"], out["backward_flops"] = op.flops / self._tokens, 0
        if op.state > 0:
            out["state"] = op.state
        if not op.forward:
            out["flops"], out["backward_flops"] = 0, out["flops"]
        out["forward" if op.forward else "backward"] = _bytes(op) / self._tokens
        return out

    @staticmethod
    def _add_memory(entries: list[dict[str, Any]], where: str, forward: bool, size: float) -> None:
        """Adds one kernel to the entry of a module."""
        if size == 0:
            return
        entry = next((each for each in entries if each["op"] == "memory" and each["name"] == where), None)
        if entry is None:
            entry = {"op": "memory", "name": where}
            entries.append(entry)
        side = "forward" if forward else "backward"
        entry[f"{side}_kernels"] = entry.get(f"{side}_kernels", 0) + 1
        entry[side] = entry.get(side, 0) + size

    def _parameters(self, layer: int, gemms: Mapping[str, Op]) -> dict[str, int]:
        prefix = self.paths[layer] + "."
        inside = tuple(path + "." for path in self.paths)
        out = Counter[str]({"all": 0, "linear": 0, "routed": 0, "replicated": 0})
        for name, tensor in self.recording.parameters.items():
            if not name.startswith(prefix):
                slot = self.recording.used.get(name)
                between = slot is not None and not name.startswith(inside) and int(slot + 0.5) == layer
                if not between or name in (self._embedding, self._head):
                    continue
            count = int(tensor.numel())
            out["all"] += count
            if self.tp > 1 and name in self.recording.replicated:
                out["replicated"] += count
            if name in gemms:
                out["linear"] += count
                out["routed"] += count if gemms[name].kind == GROUPED else 0
        return dict(out)

    def _tensors(self, layer: int) -> list[dict[str, Any]]:
        """Returns what a layer stores besides its input, unique by storage."""
        found: dict[int, None] = {}
        for saved in self.recording.saved:
            if saved.slot == len(self.paths) - 0.5:
                continue  # of the head
            for storage in sorted(self._sources(saved.storage), key=lambda each: self._producer.get(each, -1)):
                found[storage] = None
        sizes: dict[tuple[str, str], float] = defaultdict(float)
        for storage in found:
            producer = self._producer.get(storage)
            if producer is None or storage in self.recording.layer_inputs.values() or self._targets[producer] != layer:
                continue
            op = self.recording.ops[producer]
            name = f"output of {self._relative(op.path, layer)}"
            size = self._size(storage)
            keys = min(size, self.recording.keys.get(storage, 0))
            life = "weight_gradient" if storage in self.recording.operands else "input_gradient"
            if keys > 0:
                sizes[name, "keys_values"] += keys / self._tokens
            if size > keys:
                sizes[name, life] += (size - keys) / self._tokens
        for name, life in sorted(sizes, key=lambda key: sizes[key])[: max(0, len(sizes) - _MOST_TENSORS + 3)]:
            sizes["other tensors", life] += sizes.pop((name, life))
        return [{"name": name, "life": life, "bytes": size} for (name, life), size in sizes.items()]


def _is_read(op: Op, parameter: Any) -> bool:
    storage = int(parameter.untyped_storage()._cdata)
    return any(use.storage == storage for use in op.reads)
