"""Processes of a distributed run get samples of like cost."""

import pytest

torch = pytest.importorskip("torch")

from steep.compat.data.samplers import (  # noqa: E402
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)

DATA = [[0] * n for n in (9, 1, 7, 3, 5, 8, 2, 6, 4, 10, 11)]


def samplers(**options):
    return [
        LoadBalancingDistributedSampler(DATA, len, world_size=2, rank=rank, **options)
        for rank in range(2)
    ]


@pytest.mark.parametrize("drop_last", [False, True])
def test_each_moment_has_samples_alike(drop_last):
    first, second = (list(s) for s in samplers(drop_last=drop_last))
    assert len(first) == len(second) == len(samplers(drop_last=drop_last)[0])
    assert len(first) == (5 if drop_last else 6)
    pairs = [(len(DATA[i]), len(DATA[j])) for i, j in zip(first, second, strict=True)]
    assert sum(abs(a - b) != 1 for a, b in pairs) == (0 if drop_last else 1)  # what goes round
    used = {*first, *second}
    assert len(used) == (10 if drop_last else 11)


def test_epochs_and_seeds_draw_other_orders():
    (sampler, _) = samplers()
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first and sorted(sampler) == sorted(first)
    assert list(samplers(seed=1)[0]) == list(sampler)
    in_order = [len(DATA[i]) for i in samplers(shuffle=False, drop_last=True)[0]]
    assert in_order == [1, 3, 5, 7, 9]


def test_groups_are_sorted_by_themselves():
    order = [i for pair in zip(*samplers(group_size=4, shuffle=False), strict=True) for i in pair]
    assert order[:4] == [1, 3, 2, 0] and order[4:8] == [6, 4, 7, 5]
    drawn = [i for pair in zip(*samplers(group_size=4), strict=True) for i in pair]
    assert drawn != order and {*drawn} == {*order}


def test_sorting_may_be_wrong_by_a_level():
    strict, loose = (
        [len(DATA[i]) for i in samplers(shuffle=False, random_level=r)[0]] for r in (0.0, 1.0)
    )
    assert strict == sorted(strict, key=lambda n: n if n > 0 else 0)
    assert loose != strict


@pytest.mark.parametrize(("drop_last", "expected"), [(False, 3), (True, 2)])
def test_as_many_batches_in_each_process(drop_last, expected):
    def batches(indices):  # that of the short ones has fewer
        size = 3 if 0 in indices else 2
        return [indices[i : i + size] for i in range(0, len(indices), size)]

    made = [LoadBalancingDistributedBatchSampler(s, batches, drop_last) for s in samplers()]
    assert [len(m) for m in made] == [expected, expected]
    assert [len(list(m)) for m in made] == [expected, expected]
    before = list(made[0])
    made[0].set_epoch(1)
    assert list(made[0]) != before


def test_options_are_checked():
    for wrong in ({"rank": 2}, {"random_level": 2.0}, {"group_size": 0}):
        with pytest.raises(ValueError, match="must be"):
            LoadBalancingDistributedSampler(DATA, len, **{"world_size": 2, "rank": 0, **wrong})
    with pytest.raises(ValueError, match="drop_last"):
        LoadBalancingDistributedBatchSampler(samplers(drop_last=True)[0], lambda x: [x])
