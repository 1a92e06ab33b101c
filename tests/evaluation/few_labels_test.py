"""The labels that fine-tuning learns from."""

import contexts
import digit_networks
import numpy as np
import pytest
from image_helpers import write_prepared

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.evaluation import finetune, protocols

_IDS = ["n01440764", "n01443537", "n01484850", "n01491361"]
_NAMES = [f"{_IDS[i % 4]}_{10026 + 7 * i}.JPEG" for i in range(40)]
# As in SimCLR's lists: in no order.
_LISTED = [31, 4, 17, 2, 38, 9, 12, 23]


def _prepare(root, rows, name, **options):
    """Prepares images of the form of imagenet2012."""
    images, _ = digit_networks.digits()
    columns = {
        "image": np.repeat(images[rows, ..., np.newaxis], 3, -1),
        "label": np.array(rows) % 4,
        "file_name": [_NAMES[i] for i in rows],
    }
    write_prepared(
        root,
        lambda f: {
            "image": f.Image(shape=(8, 8, 3)),
            "label": f.ClassLabel(names=_IDS),
            "file_name": f.Text(),
        },
        {"train": columns, "validation": columns},
        name,
        **options,
    )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """ImageNet and another dataset, with the published list of 1 %."""
    root = tmp_path_factory.mktemp("prepared")
    _prepare(root, list(range(40)), "imagenet2012")
    _prepare(root, sorted(_LISTED), "imagenet2012_subset", config="1pct")
    _prepare(root, list(range(40)), "other")
    return root


def _context(data_dir, name="imagenet2012", split="train", **options):
    opened = [
        datasets.source(name, part, data_dir=str(data_dir))
        for part in (split, "validation")
    ]
    return digit_networks.subject(
        *opened, data_dir=str(data_dir), finetune_scratch=False, **options
    )


def _pixels(labels):
    chosen = labels.context.data.train.select(labels.rows)
    examples = chosen.examples().as_numpy_iterator()
    return np.stack([example["image"][..., 0] for example in examples])


@pytest.mark.slow
def test_the_prepared_subset_is_used_for_imagenet_alone(data_dir):
    images, _ = digit_networks.digits()
    chosen = finetune._few_labels(_context(data_dir), 0.01, seed=0)
    assert chosen.subset == "imagenet2012_subset/1pct"
    np.testing.assert_array_equal(_pixels(chosen), images[sorted(_LISTED)])
    for context in (
        _context(data_dir, "other"),
        _context(data_dir, split="train[:80%]"),
    ):
        assert protocols.missing("finetune", context) is None
        chosen = finetune._few_labels(context, 0.01, seed=0)
        assert (chosen.subset, len(chosen.rows)) == ("drawn", 4)
    assert finetune._few_labels(context, 1.0, seed=0).subset == "all"


@pytest.mark.slow
def test_results_say_which_labels_they_are_of(data_dir):
    options = {
        "finetune_fractions": "0.01,1",
        "finetune_epochs": "1",
        "finetune_augmentation": "none",
    }
    parts = {}
    for lists, split in (("published", "train"), ("drawn", "train[:80%]")):
        context = _context(data_dir, split=split, **options)
        parts[lists] = contexts.measure("finetune", context)
    published, drawn = (part["1%"] for part in parts.values())
    assert published["metrics"]["subset"] == "imagenet2012_subset/1pct"
    assert published["metrics"]["labels"] == len(_LISTED)
    assert drawn["metrics"]["subset"] == "drawn"
    # Results of both are not compared.
    assert published["resolved"]["subset"] == "published"
    assert drawn["resolved"] == {"optimizer": "sgd", "subset": "drawn"}
    for part in parts.values():
        assert part["100%"]["metrics"]["subset"] == "all"
        assert part["100%"]["resolved"]["subset"] == "drawn"


def test_labels_that_are_not_here_are_an_error_that_says_what_to_do(data_dir):
    context = _context(data_dir, finetune_fractions="1,0.1")
    for word in ("imagenet2012_subset/10pct", "fractions"):
        assert word in protocols.missing("finetune", context)
    with pytest.raises(errors.UserError, match="imagenet2012_subset/10pct"):
        protocols.run(context, ["finetune"])
    whole = _context(data_dir, finetune_fractions="1", finetune_epochs="1")
    assert protocols.missing("finetune", whole) is None
