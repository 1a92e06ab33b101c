"""AutoAugment and RandAugment: operations of random kind and strength.

AutoAugment (Cubuk et al. 2019) with its ImageNet policy, RandAugment (Cubuk et
al. 2020) with the operations and ranges of the authors' TensorFlow code.
Lengths in pixels are for 224 x 224 and scale with the side of a view.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tf_contrastive.views import affine, pillow, prng, selection

# 25 pairs of (operation, probability, level); each view gets one pair.
IMAGENET_POLICY = (
    (("Equalize", 0.8, 1), ("ShearY", 0.8, 4)),
    (("Color", 0.4, 9), ("Equalize", 0.6, 3)),
    (("Color", 0.4, 1), ("Rotate", 0.6, 8)),
    (("Solarize", 0.8, 3), ("Equalize", 0.4, 7)),
    (("Solarize", 0.4, 2), ("Solarize", 0.6, 2)),
    (("Color", 0.2, 0), ("Equalize", 0.8, 8)),
    (("Equalize", 0.4, 8), ("SolarizeAdd", 0.8, 3)),
    (("ShearX", 0.2, 9), ("Rotate", 0.6, 8)),
    (("Color", 0.6, 1), ("Equalize", 1.0, 2)),
    (("Invert", 0.4, 9), ("Rotate", 0.6, 0)),
    (("Equalize", 1.0, 9), ("ShearY", 0.6, 3)),
    (("Color", 0.4, 7), ("Equalize", 0.6, 0)),
    (("Posterize", 0.4, 6), ("AutoContrast", 0.4, 7)),
    (("Solarize", 0.6, 8), ("Color", 0.6, 9)),
    (("Solarize", 0.2, 4), ("Rotate", 0.8, 9)),
    (("Rotate", 1.0, 7), ("TranslateY", 0.8, 9)),
    (("ShearX", 0.0, 0), ("Solarize", 0.8, 4)),
    (("ShearY", 0.8, 0), ("Color", 0.6, 4)),
    (("Color", 1.0, 0), ("Rotate", 0.6, 2)),
    (("Equalize", 0.8, 4), ("Equalize", 0.0, 8)),
    (("Equalize", 1.0, 4), ("AutoContrast", 0.6, 2)),
    (("ShearY", 0.4, 7), ("SolarizeAdd", 0.6, 7)),
    (("Posterize", 0.8, 2), ("Solarize", 0.6, 10)),
    (("Solarize", 0.6, 8), ("Equalize", 0.6, 1)),
    (("Color", 0.8, 6), ("Rotate", 0.4, 5)),
)


def arguments(
    level: float, size: int, translation: float, cutout: float
) -> dict[str, float]:
    """The argument of each operation at a level, on a scale of 10.

    It is a factor, threshold, number of bits, slope, angle in degrees or length
    in pixels, without the sign of affine transforms. `size` is the side of a
    view; `translation` and half the side of a `cutout` are in pixels at level
    10 and side 224.
    """
    fraction = level / 10
    factor, slope = 0.1 + 1.8 * fraction, 0.3 * fraction
    length = translation * fraction * size / 224
    return {
        "AutoContrast": 0.0,
        "Equalize": 0.0,
        "Invert": 0.0,
        "Rotate": 30 * fraction,
        # At least one bit: the authors' code shifts by at most 7.
        "Posterize": max(int(4 * fraction), 1),
        "Solarize": int(256 * fraction),
        "Color": factor,
        "Contrast": factor,
        "Brightness": factor,
        "Sharpness": factor,
        "ShearX": slope,
        "ShearY": slope,
        "TranslateX": length,
        "TranslateY": length,
        "Cutout": int(cutout * fraction * size / 224),
        "SolarizeAdd": int(110 * fraction),
    }


# The operations of RandAugment, each equally probable.
OPERATIONS = tuple(arguments(0, 0, 0, 0))


def _positions(names: tuple[str, ...]) -> np.ndarray:
    """The position of each of `OPERATIONS` in `names`, or -1: int32 [16]."""
    return np.array(
        [names.index(n) if n in names else -1 for n in OPERATIONS], np.int32
    )


def _with_argument(
    operation: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> selection.Operation:
    return lambda x, p: operation(x, tf.cast(p[:, 0], tf.float32))


def _cutout(rows: tf.Tensor, parameters: tf.Tensor) -> tf.Tensor:
    columns = tf.cast(parameters[:, :3], tf.float32)
    return pillow.cutout(rows, *tf.unstack(columns, axis=1))


def _affine(rows: tf.Tensor, parameters: tf.Tensor, static: bool) -> tf.Tensor:
    pixels, matrix = pillow.as_pixels(rows), parameters[:, 3:]
    moved = affine.transform(pixels, matrix, pillow.FILL, static)
    return pillow.as_rows(moved)


def _distort(
    rows: tf.Tensor,
    choice: tf.Tensor,
    strength: tf.Tensor,
    uniforms: tf.Tensor,
    static: bool,
) -> tf.Tensor:
    """Applies one operation per view to rows float32 [m, S, 3 S] of levels.

    Choices are positions in `OPERATIONS`; -1 leaves a view unchanged. The
    uniform numbers, [m, 3], make the sign, and the centre of a cutout.
    """
    size = rows.shape[1]
    # For -1 position 0 is read, and not used.
    kind = tf.gather(_positions(affine.TRANSFORMS), tf.maximum(choice, 0))
    signed = tf.where(uniforms[:, 0] < 0.5, -strength, strength)
    matrix = affine.matrices(kind, signed, size, static)
    centre = tf.floor(uniforms[:, 1:] * size)
    parameters = tf.concat([strength[:, tf.newaxis], centre], axis=1)
    parameters = tf.cast(parameters, matrix.dtype)
    parameters = tf.concat([parameters, matrix], axis=1)
    operations: dict[str, selection.Operation] = {
        "AutoContrast": lambda x, p: pillow.autocontrast(x),
        "Equalize": lambda x, p: pillow.equalize(x, static),
        "Invert": lambda x, p: pillow.invert(x),
        "Posterize": _with_argument(pillow.posterize),
        "Solarize": _with_argument(pillow.solarize),
        "Color": _with_argument(lambda x, f: pillow.color(x, f, static)),
        "Contrast": _with_argument(lambda x, f: pillow.contrast(x, f, static)),
        "Brightness": _with_argument(pillow.brightness),
        "Sharpness": _with_argument(pillow.sharpness),
        "Cutout": _cutout,
        "SolarizeAdd": _with_argument(pillow.solarize_add),
        "Affine": lambda x, p: _affine(x, p, static),
    }
    names = tuple(operations)
    group = _positions(names) + 1
    group[group == 0] = len(names)
    groups = tf.gather(group.astype(np.int32), tf.maximum(choice, 0))
    groups = tf.where(choice < 0, 0, groups)
    return selection.apply_choice(
        groups,
        list(operations.values()),
        rows,
        parameters,
        static,
        costly=[names.index(name) + 1 for name in ("Equalize", "Affine")],
    )


def _distort_in_turn(
    pixels: tf.Tensor,
    choices: tf.Tensor,
    strength: tf.Tensor,
    uniforms: tf.Tensor,
    static: bool,
) -> tf.Tensor:
    """Applies L operations of `_distort` per view, one after the other.

    Choices and strengths are [m, L], `uniforms` [m, 3 L].
    """
    layers = choices.shape[1]
    numbers = tf.reshape(uniforms, [-1, layers, 3])

    def step(layer: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        choice, argument, sign = (
            x[:, layer] for x in (choices, strength, numbers)
        )
        return layer + 1, _distort(rows, choice, argument, sign, static)

    # A loop, so that the first batch does not wait for a graph of each layer.
    start = (0, pillow.from_unit(pixels))
    _, rows = tf.while_loop(lambda i, _: i < layers, step, start)
    return pillow.to_unit(rows)


@dataclasses.dataclass(frozen=True)
class RandAugment:
    """Operations in a row, each drawn from `OPERATIONS`, at one magnitude.

    As in the authors' code, a view is left unchanged as often as each of the 16
    operations is applied.
    """

    layers: int  # Operations per view.
    magnitude: float  # On a scale of 10.

    @property
    def streams(self) -> dict[str, int]:
        """Uniform numbers per view, by stream."""
        return {"randaugment": 4 * self.layers}

    def choices(self, uniforms: prng.Uniforms) -> tf.Tensor:
        """Positions in `OPERATIONS`, or -1 for none: int32 [m, layers]."""
        first = uniforms["randaugment"][:, : self.layers]
        return tf.cast(first * (len(OPERATIONS) + 1), tf.int32) - 1

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        table = arguments(self.magnitude, size, 100, 40)
        choices = self.choices(uniforms)
        values = np.array([0.0, *table.values()], np.float32)
        strength = tf.gather(values, choices + 1)
        rest = uniforms["randaugment"][:, self.layers :]
        return _distort_in_turn(pixels, choices, strength, rest, static)


@dataclasses.dataclass(frozen=True)
class AutoAugment:
    """One of the pairs of `IMAGENET_POLICY` per view."""

    streams: ClassVar[dict[str, int]] = {"autoaugment": 9}

    def choices(self, uniforms: prng.Uniforms) -> tuple[tf.Tensor, tf.Tensor]:
        """The pair of each view, int32 [m]; what takes place, int32 [m, 2].

        These are positions in `IMAGENET_POLICY`, and in `OPERATIONS` or -1 for
        an operation that is not applied.
        """
        numbers = uniforms["autoaugment"]
        pair = tf.cast(numbers[:, 0] * len(IMAGENET_POLICY), tf.int32)
        names = [
            [OPERATIONS.index(n) for n, _, _ in p] for p in IMAGENET_POLICY
        ]
        probabilities = [[step[1] for step in p] for p in IMAGENET_POLICY]
        applied = numbers[:, 1:3] < tf.gather(probabilities, pair)
        return pair, tf.where(applied, tf.gather(names, pair), -1)

    def __call__(
        self, pixels: tf.Tensor, uniforms: prng.Uniforms, static: bool = False
    ) -> tf.Tensor:
        """Changes pixels float32 [m, S, S, 3] in [0, 1]."""
        size = pixels.shape[1]
        table = [
            [arguments(level, size, 250, 100)[name] for name, _, level in p]
            for p in IMAGENET_POLICY
        ]
        pair, choices = self.choices(uniforms)
        strength = tf.gather(tf.constant(table, tf.float32), pair)
        rest = uniforms["autoaugment"][:, 3:]
        return _distort_in_turn(pixels, choices, strength, rest, static)
