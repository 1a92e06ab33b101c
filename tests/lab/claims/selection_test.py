"""The choice of an arm's flags, and grids that are extended at their edges."""

import pytest

from lab.claims import definitions, selection

_GRID = [[f"--learning_rate={rate}"] for rate in (0.1, 0.2, 0.4)]
_SELECT = definitions.Select({"a": _GRID, "b": _GRID}, "top-1")


def _unit(arm, flags, top1, case="", **fields):
    values = {} if top1 is None else {"top-1": top1}
    unit = {"case": case, "arm": arm, "flags": flags, "values": values}
    return unit | fields


def _tried(a, b, grid=_GRID):
    """Units of two arms, with their accuracies in the order of the grid."""
    return [
        _unit(arm, flags, top1)
        for arm, numbers in (("a", a), ("b", b))
        for flags, top1 in zip(grid, numbers, strict=True)
    ]


def _beyond(tried, select=_SELECT):
    best = selection.best(tried, "top-1")
    return [
        (arm, flags[-1].partition("=")[2])
        for _, arm, flags in selection.beyond(select, tried, best)
    ]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # Inside, for both.
        ([1, 2, 1], [2, 3, 1], []),
        # One is at an edge: both get a further rate.
        ([1, 2, 3], [2, 3, 1], [("a", "0.8"), ("b", "0.8")]),
        ([3, 2, 1], [2, 3, 1], [("a", "0.05"), ("b", "0.05")]),
        # At different edges.
        (
            [3, 2, 1],
            [1, 2, 3],
            [("a", "0.05"), ("b", "0.05"), ("a", "0.8"), ("b", "0.8")],
        ),
    ],
)
def test_a_best_rate_at_an_edge_extends_the_grid_of_all_arms(a, b, expected):
    assert sorted(_beyond(_tried(a, b))) == sorted(expected)


def test_a_grid_is_extended_up_to_four_times():
    grid = [*_GRID]
    for rate in (0.8, 1.6, 3.2):
        grid.append([f"--learning_rate={rate}"])
    rising = range(len(grid))
    inside = [0, 5, 0, 0, 0, 0]
    assert ("a", "6.4") in _beyond(_tried(rising, inside, grid))
    grid.append(["--learning_rate=6.4"])
    tried = _tried([*rising, 9], [*inside, 0], grid)
    assert not _beyond(tried)
    edges = selection.edges(tried, selection.best(tried, "top-1"))
    assert edges["/a"].best == 6.4 and list(edges) == ["/a"]


def test_rates_are_compared_at_the_same_other_flags():
    grid = [
        [f"--margin={margin}", f"--learning_rate={rate}"]
        for margin in (0, 1)
        for rate in (0.1, 0.2)
    ]
    select = definitions.Select({"a": grid}, "top-1")
    tried = [
        _unit("a", flags, top1)
        for flags, top1 in zip(grid, [1, 2, 1, 3], strict=True)
    ]
    best = selection.best(tried, "top-1")
    assert best == {"/a": ["--margin=1", "--learning_rate=0.2"]}
    assert list(selection.beyond(select, tried, best)) == [
        ("", "a", ["--margin=1", "--learning_rate=0.4"])
    ]
    # A single rate is not a grid.
    alone = [_unit("a", ["--learning_rate=0.1"], 1)]
    best = selection.best(alone, "top-1")
    assert not selection.edges(alone, best)
    assert not list(selection.beyond(select, alone, best))


def test_what_did_not_train_or_failed_loses():
    gate = {"final": 5.0, "collapsed": 5.0}
    tried = [
        _unit("a", ["--learning_rate=1"], 0.3),
        _unit("a", ["--learning_rate=2"], 0.9, gate=gate),
        _unit("a", ["--learning_rate=4"], None, failed="diverged"),
    ]
    assert selection.best(tried, "top-1") == {"/a": ["--learning_rate=1"]}
