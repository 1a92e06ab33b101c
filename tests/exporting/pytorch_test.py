"""Files for PyTorch: names, kernels and paddings; what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import noise

from tf_contrastive import encoders, exporting
from tf_contrastive.base import errors
from tf_contrastive.encoders.published import reading
from tf_contrastive.exporting import pytorch


@pytest.mark.slow
def test_an_export_is_read_again(tmp_path):
    options = {"stem": "imagenet", "mean": (0.1, 0.2, 0.3), "std": (0.5,) * 3}
    encoder = encoders.build("resnet18", image_shape=(36, 36, 3), **options)
    generator = np.random.default_rng(0)
    for variable in encoder.variables:
        variable.assign(generator.uniform(0.1, 0.9, variable.shape))
    path = exporting.export(encoder, str(tmp_path), formats=["pytorch"])
    (described,) = exporting.details(path)["formats"]
    file = f"{path}/{described['file']}"
    # Also its padding and statistics, which other files of PyTorch lack.
    found, images = exporting.load(file), noise(2, 36)
    for ours, theirs in zip(encoder.variables, found.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(found(images), encoder(images), rtol=1e-5)
    # Those of torchvision's `resnet18()`, without its classifier.
    content = reading.read(file)
    assert content.shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    learned = [x for n, x in content.shapes.items() if "running" not in n]
    assert (len(content.shapes), len(learned)) == (100, 60)
    assert sum(map(np.prod, learned)) == 11_689_512 - 513_000
    kernel = encoder.get_layer("stem_conv").kernel
    assert content.read("conv1.weight")[9, 2, 3, 1] == kernel[3, 1, 2, 9]


@pytest.mark.parametrize("side", [32, 34])
@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_the_pool_is_pytorchs(side, padding):
    options = {"stem": "imagenet", "pool_padding": padding}
    encoder = encoders.build("resnet10", image_shape=(side, side, 3), **options)
    code = pytorch.file_for_pytorch(encoder)[1]["code"]
    before, after = tf.keras.Model(
        encoder.input,
        [encoder.get_layer(x).output for x in ("stem_norm_relu", "stem_pool")],
    )(noise(2, side))
    # With `ceil_mode` a pixel beyond the end, without it one at both ends.
    edges = [int("MaxPool2d(3, 2, ceil_mode=True)" not in code), 1]
    edges = [[0, 0], edges, edges, [0, 0]]
    before = tf.pad(before, edges, constant_values=-np.inf)
    expected = tf.nn.max_pool2d(before, 3, 2, "VALID")
    np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet10", {"project_first": True}),
        ("convnet", {}),
    ],
)
def test_other_networks_are_refused(name, options, tmp_path):
    encoder = encoders.build(name, image_shape=(16, 16, 3), **options)
    with pytest.raises(errors.UserError, match=f"format=pytorch.*{name}"):
        exporting.export(encoder, str(tmp_path), formats=["pytorch"])
    assert not [*tmp_path.iterdir()]
