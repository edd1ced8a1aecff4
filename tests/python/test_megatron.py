"""Megatron-core's interleaved order is that of interleaved-1f1b, and with overlapped experts of combined-1f1b."""

import itertools
import types
import warnings

import pytest
import sluice

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schedules = pytest.importorskip(
        "megatron.core.pipeline_parallel.schedules",
        reason="SKIPPED: Megatron-core is not installed: tests/pytorch/install.sh installs it",
        exc_type=ImportError,
    )


def order_of_megatron(rank, ranks, chunks, microbatches, group, experts):
    """Returns the ops of a rank as forward_backward_pipelining_with_interleaving runs them."""
    table = schedules.get_schedule_table(microbatches, chunks, group)
    communicator = types.SimpleNamespace(
        pp_group=types.SimpleNamespace(size=lambda: ranks, rank=lambda: rank),
        virtual_pipeline_model_parallel_size=chunks,
    )
    total, _, warm_up, remaining = schedules.get_pp_rank_microbatches(
        microbatches, chunks, group, overlap_moe_expert_parallel_comm=experts, p2p_communicator=communicator
    )
    forwards = [sluice.F(mb, chunk * ranks + rank) for mb, chunk in table]
    backwards = [sluice.B(mb, (chunks - 1 - chunk) * ranks + rank) for mb, chunk in table]
    order = forwards[:warm_up]
    for i in range(remaining):
        order += [forwards[warm_up + i], backwards[i]]
    return order + backwards[remaining:total]


GRID = [
    (ranks, chunks, microbatches, group)
    for ranks, chunks, groups in itertools.product((2, 3, 4, 8), (2, 3, 4), (1, 2, 4))
    for group in {ranks, 2 * ranks}
    for microbatches in {groups * ranks, groups * group}
    if microbatches >= group or group == ranks
]


def flat(schedule, rank):
    return [op for each in schedule.ops(rank) for op in ([each] if isinstance(each, sluice.Op) else each)]


@pytest.mark.parametrize("ranks,chunks,microbatches,group", sorted(GRID))
def test_the_interleaved_order(ranks, chunks, microbatches, group):
    schedule = sluice.schedule("interleaved-1f1b", pp=ranks, vpp=chunks, microbatches=microbatches, group=group)
    for rank in range(ranks):
        assert flat(schedule, rank) == order_of_megatron(rank, ranks, chunks, microbatches, group, False), rank


@pytest.mark.parametrize("ranks,chunks,microbatches,group", sorted(GRID))
def test_the_order_with_overlapped_experts(ranks, chunks, microbatches, group):
    schedule = sluice.schedule("combined-1f1b", pp=ranks, vpp=chunks, microbatches=microbatches, group=group)
    for rank in range(ranks):
        assert flat(schedule, rank) == order_of_megatron(rank, ranks, chunks, microbatches, group, True), rank
