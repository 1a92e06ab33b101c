"""Texts in one buffer, beside the lists that they replace."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive.datasets import list_tables, names

_TEXTS = ["a/b.png", "", "ü", "a/b.png", "\udc80", "x" * 100]


@pytest.mark.parametrize("block", [1, 4, 1 << 16])
@pytest.mark.parametrize("in_tensorflow", [False, True])
def test_names_are_a_list(block, in_tensorflow, monkeypatch):
    monkeypatch.setattr(names, "BLOCK", block)
    made = names.Names.of(iter(_TEXTS))
    if in_tensorflow:  # From where on the texts are in a tensor.
        numbers = tf.data.Dataset.range(len(made))
        found = list(numbers.map(made.lookup).as_numpy_iterator())
        assert found == [x.encode("utf-8", "surrogateescape") for x in _TEXTS]
    assert list(made) == _TEXTS and len(made) == len(_TEXTS)
    assert [made[i] for i in range(-6, 6)] == _TEXTS + _TEXTS
    assert list(made[4:1:-2]) == _TEXTS[4:1:-2]
    assert list(made.take(np.array([5, 0, 0]))) == [
        _TEXTS[i] for i in (5, 0, 0)
    ]
    assert list(made + made[:2]) == _TEXTS + _TEXTS[:2]
    assert made.where("a/b.png").tolist() == [0, 3]
    assert made.where("y").tolist() == []
    with pytest.raises(IndexError):
        made[6]
    assert list(names.Names.of([])) == []


@pytest.mark.parametrize("block", [1, 2, 1 << 16])
def test_rows_are_a_list(block, monkeypatch):
    monkeypatch.setattr(list_tables, "BLOCK", block)
    cells = [["a"], ["b", "", "c"], ["", "d"], ["a"], ["e", "f"]]
    rows = [list_tables.Row(3 * i, each) for i, each in enumerate(cells)]
    made = list_tables.Rows.of(rows)
    assert list(made) == rows and made[-1] == rows[-1] and len(made) == 5
    assert list(made[1:3]) == rows[1:3]
    for column in range(5):
        found = list(made.column(column))
        assert found == [row.cell(column) for row in rows]
    assert made.where(["a"]).tolist() == [0, 3]
    assert made.where(["e"]).tolist() == []
    assert len(list_tables.Rows.of([])) == 0
