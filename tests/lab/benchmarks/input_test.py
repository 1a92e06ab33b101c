"""Benchmark of the input pipeline."""

import numpy as np
import pytest

from lab.benchmarks import input
from tf_contrastive import datasets


@pytest.mark.slow
def test_alternatives_make_as_many_views():
    case = input.Case("simclr", 32, 16)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, [32, 40, 40, 3]).astype(np.uint8)
    source = datasets.from_arrays(images, np.arange(32) % 2)
    for name, make in input.implementations(case).items():
        pixels = next(iter(make(source, case)))[0]
        if name == input.HOST_PART:
            pixels = pixels[0]
        assert int(np.prod(pixels.shape)) == 16 * 2 * 32 * 32 * 3, name
