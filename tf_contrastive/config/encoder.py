"""Encoders: their options and traits."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tf_contrastive.base import callables
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import own
from tf_contrastive.config.checks import one_of
from tf_contrastive.config.command import Group
from tf_contrastive.config.components import Component, Family
from tf_contrastive.config.data import (
    STANDARDIZE_EXAMPLES,
    standardization,
    write_statistics,
)
from tf_contrastive.config.dataset import IMAGENET_STATISTICS, ChannelStatistics
from tf_contrastive.config.fields import argument, module_of, option

# Stem `auto` is cifar (3x3/1, no pooling) up to this image side: imagenet would
# cost accuracy below it, cifar would cost memory above it.
CIFAR_STEM_MAX_SIDE = 64
# Below it the last stage has less than one pixel.
_SMALLEST_SIDE = {"imagenet": 32, "cifar": 8}

# A value of `init_from`: the weights that a library has of its network.
IMAGENET = "imagenet"
_WEIGHT_FILES = (".h5", ".hdf5")


# ---- The encoders ------------------------------------------------------------


class EncoderDeclaration(Component):
    """Traits of a family of encoders; `network` is one of its networks.

    Attributes:
      prefix: what precedes a network in the name of an encoder.
      networks: what each network is made of, by its name.
      untrained: options of a network that is not trained.
      one_size: whether all images must be of the size that it was built for.
      adaptive_peak: the highest peak learning rate of an adaptive optimizer,
        which the networks need, as they do a warm-up; None: they need neither.
    """

    prefix: ClassVar[str] = ""
    networks: ClassVar[Mapping[str, Any]]
    untrained: ClassVar[Mapping[str, Any]] = {}
    adaptive_peak: ClassVar[float | None] = None
    one_size: ClassVar[bool] = False

    network: str

    @property
    def label(self) -> str:
        """The name by which it is chosen."""
        return self.prefix + self.network

    @property
    def features(self) -> int | None:
        """Dimension of the features, if it is known."""
        return None

    @property
    def library(self) -> "LibraryNetwork | None":
        """Its network in another library; None: it is of this package."""
        return None

    def resolved(self, image_size: int) -> "EncoderDeclaration":
        """Returns it with the options that depend on the side of the images."""
        del image_size
        return self

    def patches(self, image_size: int) -> int | None:
        """Returns the patches of an image, if the encoder makes some."""
        del image_size
        return None

    def shrunk(self, image_size: int) -> dict[str, Any]:
        """Returns the options of a small network, for a trial of a run."""
        stem = resolve_stem(getattr(self, "stem", None), image_size)
        return {"encoder": "resnet10", "stem": stem}


def _width() -> Any:
    return option(
        1.0,
        "multiplier of the number of channels (resnet) or features (vit)",
        above=0.0,
        maximum=32.0,
    )


class Blocks(NamedTuple):
    """A residual network: its kind of block, and blocks per stage."""

    bottleneck: bool
    repeats: tuple[int, int, int, int]


class ResNet(EncoderDeclaration):
    """Residual networks (He et al. 2016, table 1)."""

    implementation = "tf_contrastive.encoders.resnet"
    networks: ClassVar[Mapping[str, Blocks]] = {
        "resnet10": Blocks(False, (1, 1, 1, 1)),
        "resnet18": Blocks(False, (2, 2, 2, 2)),
        "resnet34": Blocks(False, (3, 4, 6, 3)),
        "resnet50": Blocks(True, (3, 4, 6, 3)),
        "resnet101": Blocks(True, (3, 4, 23, 3)),
        "resnet152": Blocks(True, (3, 8, 36, 3)),
        "resnet200": Blocks(True, (3, 24, 36, 3)),
    }
    # For training a start at zero is best, not for a baseline.
    untrained: ClassVar[Mapping[str, Any]] = {"zero_init_residual": False}

    width: float = _width()
    stem: str = option(
        "auto",
        "first layers (resnet): cifar (3x3, no pooling) or imagenet (7x7/2,"
        f" pooling); auto: cifar up to {CIFAR_STEM_MAX_SIDE} pixels",
        choices=("auto", "imagenet", "cifar"),
    )
    pool_padding: str = option(
        "same",
        "padding of the imagenet stem's max-pool (resnet): same, a pixel at the"
        " end of an even side (SimCLR's and SupCon's code); or symmetric, a"
        " pixel at each end (PyTorch, Keras)",
        choices=("same", "symmetric"),
    )
    project_first: bool = option(
        False,
        "project the input of the first block in a network of basic blocks"
        " (resnet10 to resnet34), as SimCLR's and SupCon's code does",
    )
    zero_init_residual: bool = option(
        True,
        "start the last scale of residual branches at zero (resnet; SimCLR's"
        " and SupCon's code); SINCERE's code starts it at one",
    )

    @property
    def blocks(self) -> Blocks:
        """What the network is made of."""
        return self.networks[self.network]

    @property
    def channels(self) -> int:
        """Channels of the first stage: a multiple of an accelerator's tile."""
        return 8 * max(round(8 * self.width), 1)

    @property
    def features(self) -> int:
        """Each stage has twice as many channels, a bottleneck four times."""
        return self.channels * (32 if self.blocks.bottleneck else 8)

    def resolved(self, image_size: int) -> "ResNet":
        """Returns it with its stem, for which views may be too small."""
        stem = resolve_stem(self.stem, image_size)
        smallest = _SMALLEST_SIDE[stem]
        if image_size < smallest:
            other = f" or {arg('stem', 'cifar')}" if stem == "imagenet" else ""
            raise UserError(
                f"views of {image_size} pixels are too small for the {stem}"
                f" stem: set {arg('image_size', smallest)} or more{other}"
            )
        return self.with_options(stem=stem)


class ConvNet(EncoderDeclaration):
    """The small network of Chen et al. 2021's notebook for MNIST, padded."""

    implementation = "tf_contrastive.encoders.convnet"
    # Channels of convolutions, and of the dense layer.
    networks: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "convnet": (32, 64, 64, 128)
    }
    one_size = True  # Of its dense layer.

    @property
    def features(self) -> int:
        """Outputs of the dense layer."""
        return self.networks[self.network][-1]


class Transformer(NamedTuple):
    """A vision transformer: its features, heads, and the side of a patch."""

    features: int
    heads: int
    patch: int


class ViT(EncoderDeclaration):
    """Vision transformers (Dosovitskiy et al. 2021, table 1; DeiT, table 1).

    With fixed positions and a frozen patch projection, as MoCo v3 has them.
    """

    implementation = "tf_contrastive.encoders.vit"
    networks: ClassVar[Mapping[str, Transformer]] = {
        f"vit_{size}{patch}": Transformer(features, heads, patch)
        for size, features, heads in (
            ("ti", 192, 3),
            ("s", 384, 6),
            ("b", 768, 12),
        )
        for patch in (16, 8, 4)
    }
    # MoCo v3's, at its largest stable batch (section 4.1).
    adaptive_peak = 0.0024
    one_size = True  # Of its positions.

    width: float = _width()
    depth: int = option(12, "number of blocks (vit)", minimum=1, maximum=64)
    heads: int | None = option(
        None,
        "attention heads (vit); auto: 3 (vit_ti), 6 (vit_s), 12 (vit_b)",
        minimum=1,
    )
    pooling: str = option(
        "token",
        "features (vit): token, those of a class token (MoCo v3); or mean, of"
        " all patches, without a class token",
        choices=("token", "mean"),
    )
    # Whether the patch projection stays at its random start, for stability
    # (MoCo v3, section 4.2).
    frozen_patches: bool = argument(True)
    # Stochastic depth: how often the last block is left out; earlier ones less
    # often.
    drop_path: float = argument(0.0, maximum=0.9)

    @property
    def transformer(self) -> Transformer:
        """What the network is made of."""
        return self.networks[self.network]

    @property
    def features(self) -> int:
        """Size of a token, of whole numbers for each head and coordinate."""
        step = 4 * self.transformer.heads
        scaled = self.width * self.transformer.features / step
        return step * max(round(scaled), 1)

    def resolved(self, image_size: int) -> "ViT":
        """Checks the side of the images, and the heads."""
        patch, heads = self.transformer.patch, self.heads
        if image_size % patch or not image_size:
            below = image_size // patch * patch
            sides = [below, below + patch] if below else [patch]
            raise UserError(
                f"views of {image_size} pixels are not whole patches of"
                f" {patch} pixels ({self.network}): set"
                f" {arg('image_size', ' or '.join(map(str, sides)))}"
            )
        if heads and self.features % heads:
            raise UserError(
                f"{arg('heads', heads)} does not divide the {self.features}"
                f" features of {self.network}: set a divisor, such as"
                f" {arg('heads', self.transformer.heads)}"
            )
        return self

    def patches(self, image_size: int) -> int:
        """Returns the number of patches of an image."""
        return (image_size // self.transformer.patch) ** 2

    def shrunk(self, image_size: int) -> dict[str, Any]:
        """Returns the options of a small network, for a trial of a run."""
        del image_size
        network = f"vit_ti{self.transformer.patch}"
        return {"encoder": network, "depth": min(self.depth, 2), "heads": None}


# The networks of Keras and KerasCV. The weights of Keras expect what its
# `preprocess_input`, and the layers that `include_preprocessing` adds, make of
# 0..255; those of Caffe are centred bytes.
_BACKBONES = json.loads(
    Path(__file__).with_name("backbones.json").read_text(encoding="utf-8")
)


class LibraryNetwork(NamedTuple):
    """A function of `tf.keras.applications`, or a class of `keras_cv.models`.

    Attributes:
      weights_input: statistics that standardise images for the library's
        weights. KerasCV trains with `include_rescaling`, which divides by 255.
      arguments: of the function or class.
      kind: name of the class; of a function, that of the network.
      input_scale: factor of standardised colours that the network expects.
      blue_first: whether the weights take the colours in the order BGR.
      starts_at_first_tensor: whether it leaves out what precedes its input.
      can_be_copied: whether Keras can clone its layers.
    """

    weights_input: ChannelStatistics = ChannelStatistics((0.0,) * 3, (1.0,) * 3)
    arguments: Mapping[str, Any] = {}
    kind: str = ""
    input_scale: float = 1.0
    blue_first: bool = False
    starts_at_first_tensor: bool = False
    can_be_copied: bool = True


def _library_networks(library: str) -> dict[str, LibraryNetwork]:
    networks: dict[str, LibraryNetwork] = {}
    for group in _BACKBONES[library]:
        names = group.pop("names")
        if statistics := group.pop("weights_input", None):
            group["weights_input"] = ChannelStatistics(*map(tuple, statistics))
        networks |= dict.fromkeys(names, LibraryNetwork(**group))
    return networks


class Library(EncoderDeclaration):
    """Networks of another library."""

    implementation = "tf_contrastive.encoders.backbones"
    networks: ClassVar[Mapping[str, LibraryNetwork]]

    @property
    def library(self) -> LibraryNetwork:
        """Its network in the library."""
        return self.networks[self.network]


class Keras(Library):
    """Networks of `tf.keras.applications`."""

    prefix = "keras:"
    networks = _library_networks("keras")


class KerasCV(Library):
    """Backbones of KerasCV; its own presets have to be downloaded."""

    prefix = "keras_cv:"
    networks = _library_networks("keras_cv")


# What a function that makes an encoder may take beside its options.
OWN_INPUTS = ("image_shape",)


class OwnEncoder(EncoderDeclaration):
    """A network of your own: a Keras model, or a function that returns one.

    A function may take `image_shape`, (height, width, channels). Other
    parameters are its options.
    """

    networks: ClassVar[Mapping[str, Any]] = {}


@functools.cache
def own_encoder(name: str) -> type[OwnEncoder]:
    """Returns the declaration of an encoder of your own, `module:name`."""
    part = own.load("encoder", name, PREFIXES)
    options = callables.options_of(part, OWN_INPUTS, kind="encoder")
    return own.declare(name, OwnEncoder, options)


_FAMILIES: tuple[Any, ...] = (ResNet, ConvNet, ViT, Keras, KerasCV)
# The name of an encoder -> its family.
ENCODERS: dict[str, type[EncoderDeclaration]] = {
    family.prefix + network: family
    for family in _FAMILIES
    for network in family.networks
}
# Short, for help and errors: names, and libraries' prefixes.
_NAMES = [name for name in ENCODERS if ":" not in name]
_FORMS = [*_NAMES, f"{Keras.prefix}NAME", f"{KerasCV.prefix}NAME"]
PREFIXES = (Keras.prefix, KerasCV.prefix)


def split_name(name: str) -> str:
    """Returns the network of an encoder's name."""
    return name.rpartition(":")[2]


def near(name: str) -> list[str]:
    """Returns the names near to one, those of its library or all forms."""
    prefix = name.partition(":")[0] + ":"
    return [known for known in ENCODERS if known.startswith(prefix)] or _FORMS


def is_own(name: str) -> bool:
    """Whether a name is that of an encoder of your own, `module:name`."""
    return bool(module_of(name)) and not name.startswith(PREFIXES)


# ---- Options of a run --------------------------------------------------------


def declare(name: str) -> EncoderDeclaration:
    """Returns an encoder with its defaults, by a name that was checked."""
    if is_own(name):
        return own_encoder(name)(network=name)
    return ENCODERS[name](network=split_name(name))


ENCODER = Family(
    kind="encoder",
    members=ENCODERS,
    help=f"encoder: {', '.join(_NAMES)} (convnet: three convolutions, for"
    " MNIST; vit_...: transformers with patches of 16, 8 or 4 pixels);"
    " or keras:NAME, also with its ImageNet weights (init_from), or"
    " keras_cv:NAME; or module:name, a Keras model of your own or a function"
    " that returns one",
    check=lambda name: (
        None if name in ENCODERS or is_own(name) else one_of(name, near(name))
    ),
    flags=("width", "stem"),
    declare=declare,
).option(ResNet(network="resnet50"))


class EncoderSetup(Group):
    """Initial weights of the encoder, its input, output and average."""

    init_from: str = option(
        "",
        "encoder with the initial weights: folder of a run, or published"
        " checkpoint of SimCLR, SupCon or PyTorch, whose encoder, width and"
        " stem are taken, too; or an export, or pretrained:NAME (see"
        " `encoders`); for keras:NAME also imagenet, which is downloaded, and"
        " for it and keras_cv:NAME a file .h5 that `save_weights` wrote; empty:"
        " random weights",
    )
    standardize: str | None = option(
        None,
        "mean and standard deviation of the channels, by which the encoder's"
        " first layer standardizes images: ImageNet's, the dataset's (known, or"
        f" computed from at most {STANDARDIZE_EXAMPLES} examples), none, or"
        " numbers M,M,M/S,S,S; auto: imagenet, with init_from=imagenet or a"
        " file as the network's ImageNet weights expect, with channels other"
        " than 3 dataset",
        check=standardization,
    )
    l2_normalize_features: bool = option(
        False,
        "l2-normalize the encoder's output before the projection head and the"
        " linear probe (SupCon's code on ImageNet)",
    )
    ema: float = option(
        0.0,
        "decay of a moving average of the weights and of BatchNorm's"
        " statistics, such as 0.999, which other commands read instead of the"
        " weights; after s steps at most s / (s + 9); 0: none",
        maximum=0.9999999,
    )

    def starts_from_weights(self, encoder: EncoderDeclaration) -> bool:
        """Whether the initial weights are those of the encoder's library."""
        return bool(encoder.library) and names_weights(self.init_from)

    def check(self, encoder: EncoderDeclaration) -> None:
        """Raises `UserError` for images that ImageNet weights do not expect.

        A file may hold weights that were trained with any standardization.
        """
        has_others = self.standardize not in (None, _expected(encoder))
        if has_others and encoder.library and self.init_from == IMAGENET:
            raise UserError(
                f"{arg('standardize', self.standardize)}:"
                f" {arg('init_from', IMAGENET)} has the standardization of its"
                f" weights: leave {arg('standardize')} out"
            )


def names_weights(init_from: str) -> bool:
    """Whether initial weights are named that are no run and no export."""
    return init_from == IMAGENET or init_from.lower().endswith(_WEIGHT_FILES)


def _expected(chosen: EncoderDeclaration) -> str:
    """Returns the value of `standardize` for weights of another library."""
    library = chosen.library
    if not library or library.weights_input == IMAGENET_STATISTICS:
        return "imagenet"
    return write_statistics(library.weights_input, digits=9)


def resolve_stem(stem: str | None, image_size: int) -> str:
    """Returns the stem for an image side, with `auto` or None resolved."""
    if stem not in (None, "auto"):
        return stem
    return "cifar" if image_size <= CIFAR_STEM_MAX_SIDE else "imagenet"


def resolve_setup(
    setup: EncoderSetup, encoder: EncoderDeclaration, channels: int = 3
) -> EncoderSetup:
    """Returns an encoder's setup, with its standardization resolved."""
    if setup.standardize is not None:
        return setup
    standardize = "imagenet" if channels == 3 else "dataset"
    if setup.starts_from_weights(encoder):
        standardize = _expected(encoder)
    return dataclasses.replace(setup, standardize=standardize)
