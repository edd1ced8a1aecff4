"""Records what a PyTorch module runs, on fake tensors: ops, saved tensors, module paths; for ``_traced``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.distributed.tensor import DTensor, _sharding_prop
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from . import _core

FUSED = "fused"  # elementwise ops and reductions, of which adjacent ones are one kernel
MEMORY = "memory"  # other ops that only move bytes
GEMM = "gemm"
GROUPED = "grouped"
BATCHED = "batched"
ATTENTION = "attention"
SCAN = "scan"  # declared
COLLECTIVE = "collective"

# Ops of aten without the tags pointwise or reduction.
_FUSED = """_to_copy clone copy_ copy zero_ fill_ fill zeros zeros_like new_zeros ones ones_like new_ones full full_like
    new_full arange scalar_tensor cat stack constant_pad_nd slice_backward select_backward slice_scatter select_scatter
    expand_copy repeat flip roll tril triu _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
    native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward native_group_norm
    native_group_norm_backward native_dropout native_dropout_backward bernoulli_ rand_like embedding index gather
    index_select threshold_backward diagonal_copy linalg_vector_norm _unsafe_index floor_divide softplus_backward
    hardtanh_backward leaky_relu_backward elu_backward glu glu_backward log_sigmoid_forward log_sigmoid_backward
    mish_backward hardswish_backward hardsigmoid_backward mse_loss mse_loss_backward any all
    binary_cross_entropy_with_logits __or__ __and__ __xor__ __ior__ __iand__""".split()
_MEMORY = """sort topk cumsum logcumsumexp cumprod scatter scatter_add scatter_add_ scatter_ index_add index_add_
    index_put index_put_ _index_put_impl_ _unsafe_index_put embedding_dense_backward histc nll_loss_forward
    nll_loss_backward unfold_backward gather_backward convolution convolution_backward""".split()
_FREE = """empty empty_like new_empty empty_strided new_empty_strided _unsafe_view lift_fresh detach alias
    _assert_async _assert_scalar sym_size is_same_size set_ resize_""".split()
_READ_BY_INDEX = ("embedding", "index", "gather", "index_select", "_unsafe_index")
_SDPA = torch.nn.functional.scaled_dot_product_attention
_GEMMS = {"mm": GEMM, "addmm": GEMM, "bmm": BATCHED, "baddbmm": BATCHED, "_grouped_mm": GROUPED}
_KINDS: dict[str, Union[str, None]] = {
    **dict.fromkeys(_FREE, None),
    **dict.fromkeys(_FUSED, FUSED),
    **dict.fromkeys(_MEMORY, MEMORY),
    **_GEMMS,
}
_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "allreduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
}


@dataclass(frozen=True)
class Kernel:
    """The cost of a fused kernel, an op that PyTorch does not know: of a scan or of attention of a library.

    ``flops`` returns the floating-point operations of a call from the op's arguments, ``fraction`` is the fraction of
    the GPU's 16-bit peak at which they run, and ``state`` the bytes per sequence that a slice hands to the next one.
    """

    flops: Callable[..., float]
    fraction: float
    state: float = 0


@dataclass
class Use:
    """A part of a storage that an op reads or writes."""

    storage: int
    bytes: int
    offset: int = 0
    whole: int = 0  #: bytes of the storage


@dataclass
class Op:
    """An op that ran. ``slot`` is the index of its layer, or i - 0.5 outside of layers before layer i."""

    name: str
    path: str
    slot: float
    forward: bool
    kind: str
    reads: list[Use]
    writes: list[Use]
    active: bool  # depends on parameters or floating-point inputs
    weight: str = ""  # of a GEMM: its parameter
    shape: tuple[int, ...] = ()  # of a GEMM: batch or experts, m, k, n; of attention: heads, kv_heads, d, dv
    detail: str = ""
    flops: float = 0
    fraction: float = 0
    state: float = 0
    window: int = 0
    random: bool = False

    def where(self) -> str:
        """Returns "aten::mm at layers.0.attention"."""
        return f"{self.name} at {self.path or 'the module itself'}"


@dataclass
class Saved:
    """A tensor that the forward stores for the backward."""

    storage: int
    bytes: int
    path: str
    slot: float


@dataclass
class Recording:
    """A forward and a backward of a module."""

    tokens: int
    batch: int
    ops: list[Op] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)  # by name: the tensors of this device
    replicated: set[str] = field(default_factory=set)
    used: dict[str, float] = field(default_factory=dict)  # the slot in which a parameter is used first
    layer_inputs: dict[int, int] = field(default_factory=dict)  # storages by layer; -1: the module's result
    operands: set[int] = field(default_factory=set)  # storages that a GEMM with a weight reads
    keys: dict[int, int] = field(default_factory=dict)  # bytes of keys and values of attention by storage
    hidden: int = 0


def error(text: str) -> Exception:
    """Returns an InputError of sluice.torch.model."""
    return _core.InputError(f"sluice.torch.model: {text}")


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Fused attention: it stores queries, keys, values, its output and a float per row and head."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, window: int, query: Any, key: Any, value: Any) -> Any:
        with recorder.quiet():
            output = _by_token(query, value.shape[-1])
            sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        recorder.add_attention(window, (query, key, value), (output, sums))
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.recorder = recorder
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        tensors = ctx.saved_tensors
        with ctx.recorder.quiet():
            results = tuple(_by_token(each, each.shape[-1]) for each in tensors[:3])
        ctx.recorder.add_attention(0, (gradient, *tensors), results)
        return (None, None, *results)


def _by_token(heads: Any, size: int) -> Any:
    """Returns an empty [batch, heads, tokens, size] that is contiguous as [batch, tokens, heads, size]."""
    batch, count, tokens, _ = heads.shape
    return heads.new_empty((batch, tokens, count, size)).transpose(1, 2)


class _FusedCalls(TorchFunctionMode):  # type: ignore[misc]
    """Replaces attention and dropout, which PyTorch expands on a CPU, by the ops that run on GPUs."""

    def __init__(self, recorder: Recorder, windows: Mapping[str, int]) -> None:
        super().__init__()
        self._recorder = recorder
        self._windows = windows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _SDPA:
            return self.attend(*args, **(kwargs or {}))
        if func is torch.nn.functional.dropout:
            return self._drop(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _drop(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return torch.native_dropout(input, p, True)[0] if training and p > 0 else input

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        path = self._recorder.path
        if attn_mask is None and not is_causal:
            raise error(f"scaled_dot_product_attention at {path}: expected is_causal=True or a mask, got neither")
        if query.dim() != 4:
            shape = tuple(query.shape)
            raise error(f"scaled_dot_product_attention at {path}: expected [batch, heads, tokens, size], got {shape}")
        window = next((size for part, size in self._windows.items() if part in path), 0)
        if not isinstance(query, DTensor):
            return _Attention.apply(self._recorder, window, query, key, value)
        mesh, placements = query.device_mesh, query.placements
        local = (each.to_local() for each in (query, key, value))
        return DTensor.from_local(_Attention.apply(self._recorder, window, *local), mesh, placements)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records ops below autograd."""

    def __init__(self, recording: Recording, kernels: Mapping[str, Kernel]) -> None:
        super().__init__()
        self.recording = recording
        self.path = ""
        self.slot = -0.5
        self.forward = True
        self._kernels = kernels
        self._quiet = 0
        self._alive: list[Any] = []  # so that addresses of storages stay unique
        self._names: dict[int, str] = {}  # parameters and copies of them in another type, by storage
        self._same: dict[int, int] = {}  # storages of results that PyTorch writes in place
        self._active: set[int] = set()
        self._nodes: dict[Any, tuple[str, float]] = {}

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Does not record what runs in the block."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def add_parameter(self, name: str, tensor: Any) -> None:
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        self.recording.parameters[name] = local
        self._names.setdefault(self.storage(local), name)
        self._active.add(self.storage(local))
        if isinstance(tensor, DTensor) and any(each.is_shard() for each in tensor.placements):
            return
        self.recording.replicated.add(name)

    def add_input(self, tensor: Any) -> None:
        if tensor.is_floating_point():
            self._active.add(self.storage(tensor))

    def storage(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        address = int(storage._cdata)
        return self._same.get(address, address)

    def add_attention(self, window: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        query, key, value = inputs[:3]
        op = self._op("aten::scaled_dot_product_attention", ATTENTION, inputs, outputs)
        op.window = window
        if self.forward:
            op.shape = (query.shape[1], key.shape[1], query.shape[-1], value.shape[-1])
            for use in op.reads[1:3]:
                self.recording.keys[use.storage] = self.recording.keys.get(use.storage, 0) + use.bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it runs its ops on local tensors, which come here
        try:
            out = func(*args, **(kwargs or {}))
        except (DynamicOutputShapeException, DataDependentOutputException):
            raise error(
                f"{func.name()} at {self.path or 'the module itself'}: shapes depend on data; route tokens to experts "
                "with grouped GEMMs (torch._grouped_mm) over all of them instead of a loop over experts with tokens"
            ) from None
        if self._quiet == 0 and func.namespace != "prim":
            self._record(func, args, kwargs or {}, out)
        return out

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        inputs = [each for each in tree_iter((args, kwargs)) if isinstance(each, FakeTensor)]
        outputs = [each for each in tree_iter(out) if isinstance(each, FakeTensor)]
        space, _, name = func._schema.name.partition("::")
        read = {self.storage(each) for each in inputs}
        if not func._schema.is_mutable and all(self.storage(each) in read for each in outputs):
            return  # a view
        kind = self._kind(func, space, name)
        if kind is None:
            if name == "wait_tensor":
                self._same[self.storage(outputs[0])] = self.storage(inputs[0])
            return
        op = self._op(f"{space}::{name}", kind, inputs, outputs)
        op.random = torch.Tag.nondeterministic_seeded in func.tags
        if name in _READ_BY_INDEX and space == "aten":
            for use in op.reads:
                use.bytes = min(use.bytes, op.writes[0].bytes)
        if kind in (GEMM, BATCHED, GROUPED):
            self._set_gemm(op, args)
        elif kind == SCAN:
            kernel = self._kernels[op.name]
            op.flops, op.fraction, op.state = float(kernel.flops(*args, **kwargs)), kernel.fraction, kernel.state
        elif kind == COLLECTIVE:
            op.detail = _COLLECTIVES[name]
        elif name in ("_to_copy", "clone") and self.storage(inputs[0]) in self._names:
            self._names[op.writes[0].storage] = self._names[self.storage(inputs[0])]

    def _kind(self, func: Any, space: str, name: str) -> Union[str, None]:
        """Returns the kind of an op, or None if it takes no time."""
        if f"{space}::{name}" in self._kernels:
            return SCAN
        if space in ("_c10d_functional", "c10d"):
            if name in ("wait_tensor", "barrier", "_wrap_tensor_autograd"):
                return None
            if name in _COLLECTIVES:
                return COLLECTIVE
        elif space == "aten":
            if name in _KINDS:
                return _KINDS[name]
            if torch.Tag.pointwise in func.tags or torch.Tag.reduction in func.tags:
                return FUSED
        raise error(
            f"{space}::{name} at {self.path or 'the module itself'}: unknown op; give its cost as "
            f'kernels={{"{space}::{name}": sluice.torch.Kernel(...)}}'
        )

    def _op(self, name: str, kind: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Op:
        reads = [self._use(each) for each in inputs]
        writes = [self._use(each) for each in outputs]
        active = any(use.storage in self._active for use in reads)
        op = Op(name, self.path, self.slot, self.forward, kind, reads, writes, active)
        if active:
            self._active.update(use.storage for use in writes)
        for use in reads:
            if use.storage in self._names:
                self.recording.used.setdefault(self._names[use.storage], self.slot)
        if name == "aten::convolution" and inputs[1].shape[1] != 1:
            raise error(f"{op.where()}: unknown op: only depthwise convolutions are supported")
        self.recording.ops.append(op)
        return op

    def _use(self, tensor: Any) -> Use:
        whole = int(tensor.untyped_storage().nbytes())
        size = min(int(tensor.numel()) * int(tensor.element_size()), whole)
        return Use(self.storage(tensor), size, int(tensor.storage_offset()), whole)

    def _set_gemm(self, op: Op, args: Any) -> None:
        left, right = args[1:3] if op.name in ("aten::addmm", "aten::baddbmm") else args[:2]
        if op.kind == GROUPED:
            if right.dim() == 2:  # the gradient of the weights
                op.shape = (1, left.shape[-2], left.shape[-1], right.shape[-1])
            else:
                op.shape = (right.shape[0], left.shape[-2], left.shape[-1], right.shape[-1])
        elif op.kind == BATCHED:
            op.shape = (left.shape[0], left.shape[1], left.shape[2], right.shape[2])
        else:
            op.shape = (1, left.shape[0], left.shape[1], right.shape[1])
        for weight, other in ((right, left), (left, right)):
            name = self._names.get(self.storage(weight), "")
            if name:
                op.weight = name
                if self.forward:
                    self.recording.operands.add(self.storage(other))
                return

    # Hooks of modules and of the graph of the backward.

    def enter(self, path: str, layer: Union[int, None], inputs: Any) -> None:
        self.label(inputs)
        self.path = path
        if layer is None:
            return
        hidden = [each for each in tree_iter(inputs) if torch.is_tensor(each) and each.is_floating_point()]
        if not hidden:
            raise error(f"layer {path}: expected a floating-point tensor among its inputs")
        local = hidden[0]._local_tensor if isinstance(hidden[0], DTensor) else hidden[0]
        self.slot = layer
        self.recording.hidden = int(hidden[0].shape[-1])
        self.recording.layer_inputs[layer] = self.storage(local)

    def leave(self, parent: str, layer: Union[int, None], outputs: Any) -> None:
        self.label(outputs)
        self.path = parent
        if layer is not None:
            self.slot = layer + 0.5

    def label(self, values: Any) -> None:
        """Gives the nodes of the backward that have run since the last call the current path and layer."""
        values = values.values() if isinstance(values, Mapping) else values
        todo = [each.grad_fn for each in tree_iter(values) if torch.is_tensor(each) and each.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node is None or node in self._nodes:
                continue
            self._nodes[node] = (self.path, self.slot)
            node.register_prehook(self._entering(self.path, self.slot))
            todo.extend(each for each, _ in node.next_functions)

    def _entering(self, path: str, slot: float) -> Callable[[Any], None]:
        def enter(_: Any) -> None:
            self.path, self.slot = path, slot

        return enter

    def save(self, tensor: Any) -> Any:
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = self.storage(local)
        if storage not in self._names:
            size = int(local.untyped_storage().nbytes())
            self.recording.saved.append(Saved(storage, size, self.path, self.slot))
        return tensor


def fake(tensor: Any, mode: Any, dtype: Any) -> Any:
    """Returns a fake CPU tensor of the shape of a parameter or buffer; 32-bit parameters get the type ``dtype``."""
    kind = dtype if dtype is not None and tensor.dtype == torch.float32 else tensor.dtype
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    with mode:
        out = torch.empty(tuple(local.shape), dtype=kind, device="cpu")
    if isinstance(tensor, DTensor):
        out = DTensor.from_local(
            out, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        ).detach()
    return out.requires_grad_(tensor.requires_grad)


def record(
    module: Any,
    inputs: Sequence[Any],
    layers: Sequence[str],
    kernels: Mapping[str, Kernel],
    windows: Mapping[str, int],
    dtype: Any,
    token_dim: int,
) -> Recording:
    """Runs a forward and a backward of a module on fake tensors and returns what ran."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    first = next((each for each in inputs if torch.is_tensor(each) and each.dim() > token_dim), None)
    if first is None:
        raise error(f"expected an example input with at least {token_dim + 1} dimensions")
    batch = 1
    for size in first.shape[:token_dim]:
        batch *= int(size)
    recorder = Recorder(Recording(batch * int(first.shape[token_dim]), batch), kernels)
    tensors = {name: fake(each, mode, dtype) for name, each in module.named_parameters()}
    for name, each in tensors.items():
        recorder.add_parameter(name, each)
    buffers = {name: fake(each, mode, None).requires_grad_(False) for name, each in module.named_buffers()}
    arguments = tree_map_only(torch.Tensor, lambda each: _input(each, mode, dtype), tuple(inputs))
    for each in tree_iter(arguments):
        if isinstance(each, FakeTensor):
            recorder.add_input(each)
    index = {path: number for number, path in enumerate(layers)}
    step = _Step(module, recorder)
    own = {f"module.{name}": each for name, each in (*tensors.items(), *buffers.items())}
    calls = _FusedCalls(recorder, windows)
    with mode, _hooked(module, recorder, index), _quiet_sharding(recorder), _attending(calls), recorder, calls:
        torch.func.functional_call(step, own, arguments)
    return recorder.recording


class _Step(torch.nn.Module):  # type: ignore[misc]
    """A forward and a backward, as one module: activation checkpointing calls the module again in the backward."""

    def __init__(self, module: Any, recorder: Recorder) -> None:
        super().__init__()
        self.module = module
        self._recorder = recorder

    def forward(self, *arguments: Any) -> None:
        recorder = self._recorder
        with torch.autograd.graph.saved_tensors_hooks(recorder.save, lambda each: each):
            out = self.module(*arguments)
        recorder.label(out)
        result = _result(out)
        local = result._local_tensor if isinstance(result, DTensor) else result
        recorder.recording.layer_inputs[-1] = recorder.storage(local)
        with recorder.quiet():
            gradient = torch.empty_like(result)
        recorder.forward = False
        torch.autograd.backward([result], [gradient])


def _input(tensor: Any, mode: Any, dtype: Any) -> Any:
    out = fake(tensor, mode, dtype)
    return out.requires_grad_(out.is_floating_point())


def _result(out: Any) -> Any:
    values = out.values() if isinstance(out, Mapping) else out
    for each in tree_iter(list(values) if not torch.is_tensor(values) else values):
        if torch.is_tensor(each) and each.requires_grad:
            return each
    raise error("the module returns no tensor that requires a gradient")


@contextlib.contextmanager
def _attending(calls: _FusedCalls) -> Iterator[None]:
    """Also replaces the attention that functions of torch.nn.functional call, in which modes are off."""
    torch.nn.functional.scaled_dot_product_attention = calls.attend
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = _SDPA


@contextlib.contextmanager
def _quiet_sharding(recorder: Recorder) -> Iterator[None]:
    """Leaves out the ops on whole tensors by which DTensor finds the shapes of its results, once per shape."""
    owner: Any = _sharding_prop.ShardingPropagator
    name = "_propagate_tensor_meta_non_cached"
    if not hasattr(owner, name):
        name = "_propagate_tensor_meta"
    original = getattr(owner, name)

    def quiet(*args: Any) -> Any:
        with recorder.quiet():
            return original(*args)

    setattr(owner, name, quiet)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _hooked(module: Any, recorder: Recorder, index: Mapping[str, int]) -> Iterator[None]:
    paths = {each: path for path, each in module.named_modules()}
    stack: list[str] = []

    def before(each: Any, args: Any, kwargs: Any) -> None:
        path = paths.get(each)
        if path is None:
            return
        stack.append(recorder.path)
        recorder.enter(path, index.get(path), (args, kwargs))

    def after(each: Any, args: Any, kwargs: Any, out: Any) -> None:
        path = paths.get(each)
        if path is not None:
            recorder.leave(stack.pop(), index.get(path), out)

    handles = []
    for each in module.modules():
        handles.append(each.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(each.register_forward_hook(after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
