"""A version's ranges: whole pieces, as even as these allow, each by one host."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

import pytest

from paceline.core.shards import (
    MOST_PIECES,
    MOST_RANGES,
    PIECE,
    Shard,
    cut,
    fragments,
    heir,
    meet,
    pieces,
    taken_over,
    with_rest,
)
from support.seeds import each_seed


@pytest.mark.parametrize(
    ("cuts", "hosts", "shards"),
    [
        ([0, 10, 20, 30, 40], [3, 1], [(3, 0, 20), (1, 20, 40)]),
        ([0, 10, 20, 30], [0, 1], [(0, 0, 10), (1, 10, 30)]),
        ([0, 40], [2, 0], [(2, 0, 40)]),
        ([0, 98, 99, 100], [0, 1, 2], [(0, 0, 98), (1, 98, 100)]),
        ([0, 0], [0, 1], [(0, 0, 0)]),
    ],
)
def test_hosts_get_ranges_of_about_the_same_size_in_their_order_as_long_as_there_are_pieces(
    cuts: list[int], hosts: list[int], shards: list[Shard]
) -> None:
    assert cut(cuts, hosts) == shards


@each_seed(range(500))
def test_ranges_follow_each_other_from_the_beginning_to_the_end_each_within_a_piece_of_the_even_size(
    seed: int,
) -> None:
    lots = random.Random(seed)
    most = lots.choice([1, 64, 10**12])
    cuts = [0, *accumulate(lots.randint(1, most) for _ in range(lots.randint(1, 40)))]
    hosts = lots.sample(range(100), lots.randint(1, 50))
    shards = cut(cuts, hosts)
    assert [shards[0].begin, shards[-1].end] == [0, cuts[-1]]
    assert all(one.end == next.begin for one, next in pairwise(shards))
    assert all(shard.begin < shard.end and shard.begin in cuts for shard in shards)
    assert [shard.host for shard in shards] == hosts[: len(shards)]
    largest = max(end - begin for begin, end in pairwise(cuts))
    even = cuts[-1] / len(hosts)
    assert all(abs(shard.end - shard.begin - even) <= largest for shard in shards)
    if len(cuts) - 1 >= len(hosts) and largest <= even:
        assert len(shards) == len(hosts)


def test_shards_are_asked_for_in_pieces_that_end_at_cuts() -> None:
    half = PIECE // 2
    cuts = [0, half, 2 * half, 3 * half, 4 * half, 4 * half + 10]
    assert pieces(cuts, [Shard("b", half, 4 * half + 10)]) == [
        ("b", half, 3 * half),
        ("b", 3 * half, 4 * half + 10),
    ]
    both = pieces(cuts, [Shard("a", 0, half), Shard("c", half, 4 * half)])
    assert both == [("a", 0, half), ("c", half, 3 * half), ("c", 3 * half, 4 * half)]


def test_a_large_shard_is_asked_for_in_larger_pieces_and_not_in_more() -> None:
    cuts = [*range(0, 8 * MOST_PIECES * PIECE + 1, 2 * PIECE)]
    found = pieces(cuts, [Shard("a", 0, cuts[-1])])
    assert len(found) == MOST_PIECES
    assert {end - begin for _, begin, end in found} == {8 * PIECE}


def test_a_shard_that_can_not_be_cut_is_one_piece_however_large() -> None:
    assert pieces([0, 10 * PIECE], [Shard("a", 0, 10 * PIECE)]) == [("a", 0, 10 * PIECE)]


def test_a_part_of_a_shard_may_end_where_no_piece_does() -> None:
    cuts = [0, PIECE, 2 * PIECE, 4 * PIECE]
    parts = meet([Shard("a", 0, 2 * PIECE), Shard("b", 2 * PIECE, 4 * PIECE)], [(10, 20), (PIECE - 9, 2 * PIECE + 30)])
    assert pieces(cuts, parts) == [("a", 10, 20), ("a", PIECE - 9, 2 * PIECE), ("b", 2 * PIECE, 2 * PIECE + 30)]
    assert meet(parts, [(20, 30)]) == []


@each_seed(range(500))
def test_fragments_have_every_parameter_once_and_about_the_same_bytes(seed: int) -> None:
    lots = random.Random(seed)
    sizes = [lots.choice([1, 1, 10, lots.randint(1, 1000)]) for _ in range(lots.randint(1, 200))]
    *starts, size = accumulate(sizes, initial=0)
    count = lots.randint(1, len(sizes))
    found = fragments(starts, size, count)
    assert len(found) == count
    assert all(1 <= len(ranges) <= MOST_RANGES for ranges in found)
    ranges = sorted(one for ranges in found for one in ranges)
    assert [begin for begin, _ in ranges] + [size] == [0] + [end for _, end in ranges]
    assert all(begin < end and begin in starts for begin, end in ranges)
    if max(sizes) * 2 * MOST_RANGES * count <= size:
        parts = [sum(end - begin for begin, end in ranges) for ranges in found]
        assert max(parts) <= 2 * min(parts)


A, B, C = Shard("a", 0, 40), Shard("b", 40, 60), Shard("c", 60, 90)


def test_what_is_no_more_than_a_piece_is_asked_for_at_once_and_all_else_as_it_comes_to_be_there() -> None:
    assert with_rest([(0, 40)], (40, 50)) == [(0, 50)]
    assert with_rest([(0, PIECE)], (PIECE, PIECE + 1)) == [(0, PIECE), (PIECE, PIECE + 1)]
    assert with_rest([(0, 40), (40, 80)], (80, 90)) == [(0, 40), (40, 80), (80, 90)]
    assert with_rest([(0, 40)], (60, 70)) == [(0, 40), (60, 70)], "bytes of another host lie between"
    assert with_rest([], (60, 70)) == [(60, 70)]


def test_the_smaller_range_beside_takes_over_unless_its_host_leaves_as_well() -> None:
    assert heir([A, B, C], "b", "a") == "c"
    assert heir([A, B, C], "b", "a", {"c"}) == "a"
    assert heir([A, B, C], "b", "a", {"a", "c"}) == "c"
    assert (heir([A, B, C], "a", "a"), heir([C, B, A], "c", "a")) == ("b", "b")


def test_the_head_takes_over_where_no_other_host_makes_a_range() -> None:
    assert heir([Shard("b", 0, 90)], "b", "a") == "a"
    assert taken_over([Shard("b", 0, 90)], "b", "a") == [Shard("a", 0, 90)]


def test_ranges_that_are_taken_over_leave_no_gap() -> None:
    assert taken_over([A, B, C], "b", "c") == [A, Shard("c", 40, 90)]
    assert taken_over([A, B, C], "b", "a") == [Shard("a", 0, 60), C]
    assert taken_over([A, B, C], "a", "b") == [Shard("b", 0, 60), C]
