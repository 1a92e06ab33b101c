"""Random numbers of views."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from image_helpers import DRAWS, seeds

from tf_contrastive.views import prng


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        (
            (0x13198A2E, 0x03707344),
            (0x243F6A88, 0x85A308D3),
            (0xC4923A9C, 0x483DF7A0),
        ),
    ],
)
def test_threefry_gives_the_published_answers(key, counter, expected):
    # The known answers of the authors' Random123 library, 20 rounds.
    words = prng.threefry(
        tuple(tf.constant(word, tf.uint32) for word in key),
        tuple(tf.constant(word, tf.uint32) for word in counter),
    )
    assert tuple(int(word) for word in words) == expected


def test_uniform_numbers_are_uniform_and_independent():
    # Neighbouring seeds, as a data set gives them: (seed, index).
    index = tf.stack([tf.zeros([DRAWS], tf.int32), tf.range(DRAWS)], axis=1)
    uniforms = prng.uniform(index, {"crop": 5, "flip": 1})
    table = np.concatenate([uniforms["crop"], uniforms["flip"]], axis=1)
    assert table.min() >= 0 and table.max() < 1
    for column in table.T:
        assert scipy.stats.kstest(column, "uniform").pvalue > 1e-3
    # Between numbers of a seed, and from one seed to the next.
    both = np.concatenate([table[:-1], table[1:]], axis=1)
    correlation = np.corrcoef(both.T) - np.eye(both.shape[1])
    assert np.abs(correlation).max() < 4.5 / np.sqrt(DRAWS)


def test_an_additional_stream_does_not_change_the_others():
    few = prng.uniform(seeds(20), {"crop": 3, "blur": 2})
    more = prng.uniform(seeds(20), {"flip": 1, "blur": 2, "crop": 3})
    for name in few:
        np.testing.assert_array_equal(few[name], more[name])
    assert len(set(prng.STREAMS.values())) == len(prng.STREAMS)


def test_folded_seeds_do_not_depend_on_the_number_of_views():
    folded = prng.fold(seeds(500), 4)
    assert len({tuple(row) for row in np.reshape(folded, [-1, 2])}) == 2000
    np.testing.assert_array_equal(prng.fold(seeds(500), 2), folded[:, :2])
