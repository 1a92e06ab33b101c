"""Benchmark of the input pipeline."""

import numpy as np
import pytest

from lab.benchmarks import input
from tf_contrastive import datasets


@pytest.mark.slow
def test_input_is_compared_with_the_floor(benchmark, capsys):
    status, report = benchmark(
        "input",
        "--policies=crop,simclr",
        "--image_sizes=16",
        "--input_batch_size=4",
        "--seconds=0.01",
        "--repeats=1",
    )
    assert status == 0
    results = report["results"]
    assert [(row["policy"], row["implementation"]) for row in results] == [
        ("crop", "crop"),
        ("simclr", "crop"),
        ("simclr", "ours"),
        ("simclr", "ours, linear colours"),
        ("simclr", "ours, host part of device"),
    ]
    for row in results:
        assert row["examples_per_second"] > 0
        if row["implementation"] == "crop":
            assert row["of_floor"] == 1.0
    assert "of the floor" in capsys.readouterr().out


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


@pytest.mark.slow
def test_large_views_are_made_from_files(tmp_path):
    source = input.source_of(input.images(80, str(tmp_path)))
    assert source.info.num_examples == 512
    case = input.Case("crop", 80, 4)
    (floor,) = input.implementations(case).values()
    batches = floor(source, case)
    assert next(iter(batches))[0].shape == (4, 2, 80, 80, 3)
