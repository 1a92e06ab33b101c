import export_helpers
import numpy as np
import pytest

from tf_contrastive import exporting, heads, losses
from tf_contrastive.model import ContrastiveModel


@pytest.fixture(scope="session")
def encoder():
    return export_helpers.make_encoder()


@pytest.fixture(scope="session")
def projection(encoder):
    head = heads.build("mlp", hidden=5, output=4)
    for _ in range(3):
        head(encoder(export_helpers.make_images(8) / 255.0), training=True)
    return head


@pytest.fixture(scope="session")
def bank(encoder):
    """Embeddings of training images, and their labels; class 3 has none."""
    labels = np.arange(30) % 5
    labels[labels == 3] = 4
    images = export_helpers.make_images(30, seed=5) / 255.0
    return encoder(images).numpy(), labels


@pytest.fixture(scope="session")
def saved(encoder, projection, bank, tmp_path_factory):
    model = ContrastiveModel(encoder, projection, losses.build("ntxent"))
    return exporting.export(
        model,
        tmp_path_factory.mktemp("exports"),
        head=exporting.PrototypeHead(*bank),
        label_names=["ant", "bee", "cat", "dog", "\u00e9lan"],
        max_image_pixels=1 << 20,
        formats=["keras"],
    )
