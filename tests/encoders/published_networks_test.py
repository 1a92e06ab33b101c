"""ResNet-50 beside the published ones, transcribed in NumPy and float64."""

import numpy as np
import pytest
from image_helpers import noise

from tf_contrastive import encoders

_BLOCKS = (3, 4, 6, 3)
_EPSILON = 1e-5


def _windows(x, side, stride, before, after, fill):
    """Returns the windows [N, H', W', K, side, side] of [N, H, W, K]."""
    x = np.pad(
        x, ((0, 0), *[(before, after)] * 2, (0, 0)), constant_values=fill
    )
    windows = np.lib.stride_tricks.sliding_window_view(x, (side, side), (1, 2))
    return windows[:, ::stride, ::stride]


def _convolution(x, kernel, stride=1):
    """Convolves; (side - 1) / 2 zeros on both sides, whatever the stride."""
    pad = (len(kernel) - 1) // 2
    windows = _windows(x, len(kernel), stride, pad, pad, 0.0)
    return np.einsum("nhwkij,ijkc->nhwc", windows, kernel, optimize=True)


def _pool(x, padding):
    """Takes the largest of 3x3 pixels, in strides of 2."""
    side = x.shape[1]
    if padding == "symmetric":  # torch.nn.MaxPool2d(3, 2, padding=1)
        before = after = 1
    else:  # TensorFlow's SAME: what is missing, the odd pixel at the end.
        missing = max((-(-side // 2) - 1) * 2 + 3 - side, 0)
        before, after = missing // 2, missing - missing // 2
    windows = _windows(x, 3, 2, before, after, -np.inf)
    return windows.max(axis=(-2, -1))


class _Published:
    """ResNet-50 v1.5: the stride of a bottleneck is in its 3x3 convolution."""

    def __init__(self, variables):
        self.variables = {
            v.name: v.numpy().astype(np.float64) for v in variables
        }

    def _convolution(self, x, name, stride=1):
        return _convolution(x, self.variables[f"{name}/kernel:0"], stride)

    def _normalization(self, x, name):
        mean, variance, gamma, beta = (
            self.variables[f"{name}/{part}:0"]
            for part in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return (x - mean) / np.sqrt(variance + _EPSILON) * gamma + beta

    def _block(self, x, name, stride, project):
        shortcut = x
        if project:
            shortcut = self._convolution(x, f"{name}_shortcut", stride)
            shortcut = self._normalization(shortcut, f"{name}_shortcut_norm")
        for i in (1, 2, 3):
            x = self._convolution(x, f"{name}_conv{i}", stride if i == 2 else 1)
            x = self._normalization(x, f"{name}_norm{i}")
            x = np.maximum(x, 0) if i < 3 else x
        return np.maximum(x + shortcut, 0)

    def __call__(self, images, padding):
        x = self._convolution(images.astype(np.float64), "stem_conv", 2)
        x = np.maximum(self._normalization(x, "stem_norm"), 0)
        x = _pool(x, padding)
        for group, count in enumerate(_BLOCKS, start=1):
            for i in range(1, count + 1):
                stride = 2 if group > 1 and i == 1 else 1
                x = self._block(x, f"stage{group}_block{i}", stride, i == 1)
        return x.mean(axis=(1, 2))


def _build(**options):
    return encoders.build(
        "resnet50",
        stem="imagenet",
        image_shape=(64, 64, 3),
        mean=(0, 0, 0),
        std=(1, 1, 1),
        **options,
    )


@pytest.fixture(scope="module")
def simclr():
    """The encoder as SimCLR's code has it, with random variables."""
    encoder, generator = _build(), np.random.default_rng(0)
    for variable in encoder.variables:
        if "kernel" not in variable.name:
            values = generator.uniform(0.5, 1.5, variable.shape)
            if "beta" in variable.name or "mean" in variable.name:
                values -= 1
            variable.assign(values)
    assert len(encoder.variables) == 265
    return encoder


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_features_are_the_published_networks(padding, simclr):
    """SimCLR's tf2/resnet.py and SupCon's resnet.py; torchvision's form."""
    encoder = simclr
    if padding == "symmetric":
        encoder = _build(pool_padding="symmetric")
        encoder.set_weights(simclr.get_weights())
    images = noise(2, 64)
    published = _Published(encoder.variables)
    expected = published(images, padding)
    scale = np.abs(expected).max()
    error = np.abs(encoder(images) - expected).max() / scale
    assert error < 2e-6
    other = {"same": "symmetric", "symmetric": "same"}[padding]
    differing = np.abs(published(images, other) - expected).max() / scale
    assert differing > 1e-2
