"""What is computed on joined vectors, against NumPy, compiled and not."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive.distribution import joined

# Vectors and kernels: less than a row of a sum, a row, parts of rows, and more
# than a kernel joins.
_SHAPES = [(3,), (4096,), (7, 7, 3, 64), (3, 3, 64, 65), (), *[(5, 2)] * 40]


def _arrays(seed=0):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=s).astype(np.float32) for s in _SHAPES]


def _call(function, jit_compile):
    return tf.function(function, jit_compile=jit_compile)(
        *([tf.constant(a) for a in _arrays(seed)] for seed in (0, 1))
    )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_sums_and_norms_are_those_of_each_tensor(jit_compile):
    arrays = [a.astype(np.float64) for a in _arrays()]
    found = _call(lambda x, _: (joined.sums(x), joined.norms(x)), jit_compile)
    expected = [a.sum() for a in arrays], [np.linalg.norm(a) for a in arrays]
    for values, of_tensors in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, of_tensors, rtol=1e-5, atol=1e-3)


def test_one_number_that_is_not_finite_reaches_only_its_sum():
    compiled = tf.function(joined.sums, jit_compile=True)
    for bad in range(len(_SHAPES)):
        arrays = _arrays()
        arrays[bad].flat[-1:] = np.nan
        finite = np.isfinite(compiled([tf.constant(a) for a in arrays]))
        assert np.flatnonzero(~finite).tolist() == [bad]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_function_is_mapped_over_each_pair(jit_compile):
    def mapped(values, slots):
        pairs = map(joined.as_vector, values), map(joined.as_vector, slots)
        return joined.elementwise(
            lambda value, slot: (slot - value, 2 * slot), *map(list, pairs)
        )

    found = _call(mapped, jit_compile)
    values, slots = ([a.ravel() for a in _arrays(seed)] for seed in (0, 1))
    for (first, second), value, slot in zip(found, values, slots, strict=True):
        np.testing.assert_array_equal(first, slot - value)
        np.testing.assert_array_equal(second, 2 * slot)


def test_a_gradient_keeps_its_numbers_and_its_shape():
    for array in _arrays():
        ordered = tf.function(joined.in_order, jit_compile=True)(array)
        np.testing.assert_array_equal(ordered, array)
