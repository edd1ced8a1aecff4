import pickle

import pytest
import sluice
from sluice import B, F, I, Op, W


def one_f_one_b(ranks, microbatches):
    def ops(rank):
        warm_up = min(ranks - rank - 1, microbatches)
        for mb in range(warm_up):
            yield F(mb, rank)
        for mb in range(microbatches):
            if mb + warm_up < microbatches:
                yield F(mb + warm_up, rank)
            yield B(mb, rank)

    return ops


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_a_generator_equals_the_family(ranks, microbatches):
    own = sluice.Schedule.from_function(one_f_one_b(ranks, microbatches), ranks=ranks, microbatches=microbatches)
    family = sluice.schedule("1f1b", pp=ranks, microbatches=microbatches)
    assert [own.ops(rank) for rank in range(ranks)] == [family.ops(rank) for rank in range(ranks)]
    assert own.simulate().makespan_s == family.simulate().makespan_s
    assert own.simulate().gantt().splitlines()[1:] == family.simulate().gantt().splitlines()[1:]


def test_wrong_generators_name_the_op():
    def missing(rank):
        yield F(0, rank)

    with pytest.raises(sluice.ScheduleError, match=r"B\(stage 0, mb 0\)"):
        sluice.Schedule.from_function(missing, ranks=2, microbatches=1)

    def elsewhere(rank):
        yield F(0, 1 - rank)
        yield B(0, 1 - rank)

    with pytest.raises(sluice.ScheduleError, match="rank"):
        sluice.Schedule.from_function(elsewhere, ranks=2, microbatches=1)

    def deadlock(rank):
        yield from [F(0, 0), B(0, 0)] if rank == 0 else [B(0, 1), F(0, 1)]

    with pytest.raises(sluice.ScheduleError, match="deadlock|cycle|->"):
        sluice.Schedule.from_function(deadlock, ranks=2, microbatches=1)
    with pytest.raises(sluice.InputError, match="rank 0: expected an op or a pair of ops, got"):
        sluice.Schedule.from_function(lambda rank: ["0F0"], ranks=1, microbatches=1)
    with pytest.raises(ZeroDivisionError):
        sluice.Schedule.from_function(lambda rank: (1 // 0 for _ in "a"), ranks=1, microbatches=1)


def test_endless_generators_end():
    def endless(rank):
        while True:
            yield F(0, rank)

    with pytest.raises(sluice.InputError, match=r"rank 0: expected at most 12 ops \(F, I and W of 2 microbatches"):
        sluice.Schedule.from_function(endless, ranks=2, microbatches=2)
    with pytest.raises(sluice.InputError, match="rank 0: expected an op or a pair of ops"):
        sluice.Schedule.from_function(lambda rank: [endless(rank)], ranks=1, microbatches=1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ranks": "2"}, "ranks: expected a whole number of at least 1, got '2'"),
        ({"microbatches": 1.5}, "microbatches: expected a whole number of at least 1, got 1.5"),
        ({"microbatches": 0}, "microbatches: expected a whole number of at least 1, got 0"),
        ({"slices": None}, "slices: expected a whole number of at least 1, got None"),
        ({"placement": [0, "a"]}, "placement: expected a whole number of at least 0, got 'a'"),
        ({"ops": [F(0, 0)]}, "ops: expected a function that takes the number of the rank"),
        ({"ops": lambda rank: [Op("F", "x", 0)]}, "microbatch: expected a whole number of at least 0, got 'x'"),
        ({"ops": lambda rank: [Op(3, 0, 0)]}, "kind: expected F, B, I or W"),
    ],
)
def test_wrong_types_of_a_schedule_are_named(keys, message):
    arguments = {"ops": lambda rank: [F(0, rank), B(0, rank)], "ranks": 2, "microbatches": 1, **keys}
    with pytest.raises(sluice.InputError) as error:
        sluice.Schedule.from_function(**arguments)
    assert message in str(error.value)


def test_errors_about_types_do_not_show_the_extension():
    calls = [
        lambda: sluice.fit_correction(["a"]),
        lambda: sluice.shortlist([(1.0, 0)], "two"),
        lambda: sluice.Schedule.from_csv(3),
        lambda: sluice.slice(sluice.Scenario(pp=2, microbatches=2), slices="four"),
        lambda: sluice.weave([{"attention(F)": "long"}], []),
        lambda: sluice.simulate(pp=2, microbatches=2).gantt("wide"),
    ]
    for call in calls:
        with pytest.raises((TypeError, sluice.InputError)) as error:
            call()
        assert "_core" not in str(error.value)
        assert "incompatible" not in str(error.value)
        assert len(str(error.value)) < 300


def test_placement_split_backwards_slices_and_joint_blocks():
    def v(rank):  # two stages per rank, of which the second one is on the way back
        for mb in range(2):
            yield F(mb, rank)
            yield F(mb, 3 - rank)
            yield I(mb, 3 - rank)
            yield W(mb, 3 - rank)
            yield I(mb, rank)
            yield W(mb, rank)

    # Rank 0 would wait for stage 3, whose input comes from rank 1, between its own ops: no deadlock.
    schedule = sluice.Schedule.from_function(v, ranks=2, microbatches=2, placement=[0, 1, 1, 0])
    assert schedule.placement == [[0, 1, 1, 0]]
    assert schedule.split_backward

    def sliced(rank):
        yield from (F(0, rank, part) for part in range(3))
        yield from (B(0, rank, part) for part in reversed(range(3)))

    assert sluice.Schedule.from_function(sliced, ranks=2, microbatches=1, slices=3).num_slices == 3

    def joint(rank):
        yield F(0, 0)
        yield F(1, 0), B(0, 0)
        yield B(1, 0)

    schedule = sluice.Schedule.from_function(joint, ranks=1, microbatches=2)
    assert schedule.ops(0) == [F(0, 0), (F(1, 0), B(0, 0)), B(1, 0)]


@pytest.mark.parametrize("family", [row["name"] for row in sluice.families()])
def test_families_survive_files_and_pickling(family):
    keys = {"slices": 2} if next(row for row in sluice.families() if row["name"] == family)["sliced"] else {}
    microbatches = 4 if family == "hanayo" else 8  # as many as ranks
    schedule = sluice.schedule(family, pp=4, microbatches=microbatches, **keys)
    assert sluice.Schedule.from_json(schedule.to_json()) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert all(check["verdict"] != "error" for check in schedule.check())
    assert schedule.simulate().makespan_s > 0


def test_csv_of_pytorch(tmp_path):
    schedule = sluice.schedule("zb-v", pp=4, microbatches=8)
    again = sluice.Schedule.from_csv(schedule.to_csv())
    assert [again.ops(rank) for rank in range(4)] == [schedule.ops(rank) for rank in range(4)]
    assert "SEND_F" in schedule.to_csv(communication=True)
    path = tmp_path / "wrong.csv"
    path.write_text("0F0,0B0\n0F1\n")
    with pytest.raises(sluice.ScheduleError, match=r"wrong.csv"):
        sluice.Schedule.read(path)
    with pytest.raises(sluice.InputError, match="slices"):
        sluice.schedule("seq1f1b", pp=2, microbatches=2, slices=2).to_csv()


def test_a_schedule_of_ones_own_has_the_sizes_of_the_scenario():
    """1F1B written as a function, of a model: the same time and memory as the family's."""
    scenario = sluice.Scenario(model="llama3-8b", cluster="dgx-h100", pp=2, gbs=8, mbs=2, seq_length=4096)
    family = sluice.simulate(scenario, schedule="1f1b")
    own = sluice.Schedule.from_function(family.schedule.ops, ranks=2, microbatches=family.schedule.num_microbatches)
    result = own.simulate(scenario)
    assert result.makespan_s == family.makespan_s
    assert list(result.peak_memory_bytes) == list(family.peak_memory_bytes)
    with pytest.raises(sluice.InputError, match="--seq-length: expected 4096, as the schedule"):
        family.schedule.simulate(scenario, seq_length=8192)
