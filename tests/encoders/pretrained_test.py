"""The encoders in the package: their numbers, and what they can be used for."""

import shutil
from pathlib import Path

import pytest
import small
from image_helpers import PREPARED, needs_prepared

import tf_contrastive
from tf_contrastive import datasets, embedding, evaluation, views
from tf_contrastive.base import errors
from tf_contrastive.encoders import pretrained

_FOLDER = Path(pretrained.__file__).parent
_DIGITS = "pretrained:digits-supcon-resnet10"


# kNN of the first 2,000 images of CIFAR-10 on the first 1,000 test images: a
# twentieth of the time.
_TOP1_OF_SOME = {
    "cifar10-simclr-resnet10": 0.408,
    "cifar10-supcon-resnet10": 0.719,
}


def _embedded(encoder, dataset, split):
    """Returns embeddings and labels of a split."""
    data_dir = str(PREPARED) if dataset != "digits" else None
    source = datasets.source(dataset, split, data_dir=data_dir)
    policy = views.evaluation(encoder.input_shape[1])
    batches = datasets.evaluation_batches(source, policy, batch_size=500)
    return embedding.embed(encoder, batches)


_SLOW = [pytest.mark.slow, needs_prepared]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[] if "digits" in x else _SLOW)
        for x in pretrained.names()
    ],
)
def test_an_encoder_has_its_accuracy(name):
    known = pretrained.results(name)
    dataset = known["dataset"]
    encoder = tf_contrastive.load(f"pretrained:{name}")
    some = _TOP1_OF_SOME.get(name)
    train = _embedded(encoder, dataset, "train[:2000]" if some else "train")
    test = _embedded(encoder, dataset, "test[:1000]" if some else "test")
    assert train[0].shape[1] == known["features"]
    top1 = evaluation.knn(*train, *test)["top1"]
    # Nearly tied neighbours depend on the processor.
    tolerance = 0.01 if some else 3 / len(test[0])
    assert top1 == pytest.approx(some or known["top1"]["knn"], abs=tolerance)


def test_the_encoders_are_small_and_listed(capsys):
    sizes = [p.stat().st_size for p in _FOLDER.rglob("*") if p.is_file()]
    assert sum(sizes) < 6e6
    assert small.command("encoders") == 0
    table, _ = capsys.readouterr().out.split("\n\n")
    rows = table.splitlines()[1:]
    names = [pretrained.SCHEME + name for name in pretrained.names()]
    assert [x.split()[0] for x in rows] == names and _DIGITS in names


def test_unknown_names_and_damaged_weights_are_refused(tmp_path):
    with pytest.raises(errors.UserError, match="digits-supcon-resnet10"):
        tf_contrastive.load("pretrained:digits-supcon")
    name = _DIGITS.removeprefix("pretrained:")
    damaged = tmp_path / name
    shutil.copytree(_FOLDER / name, damaged)
    content = bytearray((damaged / pretrained.WEIGHTS).read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / pretrained.WEIGHTS).write_bytes(content)
    with pytest.raises(errors.UserError, match="is damaged"):
        pretrained.load(name, damaged)
