"""What is said about a split before it is used."""

import dataclasses

import numpy as np
import pytest
from dataset_helpers import encoded, picture, write

from tf_contrastive import datasets
from tf_contrastive.datasets import description


def _source(labels, names=None):
    images = np.zeros([len(labels), 2, 2], np.uint8)
    return datasets.from_arrays(images, np.array(labels), names)


def test_classes_are_counted_in_memory_and_for_a_time_in_files():
    source = _source(np.arange(600) % 3)
    in_files = dataclasses.replace(source, arrays=None, decoded=False)
    for each, seconds in ((source, 0.0), (in_files, 60.0)):
        found = description.count_classes(each, seconds)
        assert found.sizes.tolist() == [200] * 3 and found.examples == 600
    part = description.count_classes(in_files, 0.0)
    assert part.sizes.sum() == part.examples == 256
    rows = description.describe(in_files, part)
    assert rows["class_sizes"][0] == "of the first 256 images:"
    assert "smallest_class" not in rows


def test_classes_of_several_labels_are_counted(opened):
    source = opened("multidigits:count=3")
    found = description.count_classes(source, 0.0)
    labels = source.arrays["label"].numpy()
    assert found.sizes.tolist() == labels.sum(axis=0).tolist()
    in_files = dataclasses.replace(source, arrays=None)
    again = description.count_classes(in_files, 60.0)
    assert again.sizes.tolist() == found.sizes.tolist()
    assert again.examples == found.examples == source.info.num_examples


@pytest.mark.slow
def test_the_largest_and_the_smallest_of_many_classes_are_listed():
    few = _source([0, 0, 1, 3], ("ant", "bee", "cat", "dog"))
    classes = description.count_classes(few, 0.0)
    rows = description.describe(few, classes)
    assert rows["class_sizes"] == ["ant: 2", "bee: 1", "cat: 0", "dog: 1"]
    assert (rows["smallest_class"], rows["largest_class"]) == (0, 2)
    many = _source(np.repeat(np.arange(1000), 1 + np.arange(1000) % 997))
    classes = description.count_classes(many, 0.0)
    lines = description.describe(many, classes)["class_sizes"]
    assert lines[:2] == ["996: 997", "995: 996"] and lines[-1] == "997: 1"
    assert "990 more" in lines[5] and len(lines) == 11


def test_data_are_described_without_labels_too(tmp_path):
    for i in range(4):
        write(tmp_path / "all" / f"{i}.png", encoded(picture(i % 3)))
    write(tmp_path / "all" / "broken.png", b"\0")
    source = datasets.source(f"folder:{tmp_path}")
    rows = description.describe(source, description.count_classes(source, 0.0))
    assert rows["classes"] is None and "class_sizes" not in rows
    assert rows["copies"].startswith("1 (") and rows["unreadable_images"] == 1
    assert rows["unreadable"].endswith("broken.png")
    found = (("files", "4 PNG"), ("left_out", "2 .txt"))
    info = dataclasses.replace(source.info, found=found)
    rows = description.describe(dataclasses.replace(source, info=info), None)
    assert set(found) <= set(rows.items())
