"""Projection heads: their options and traits."""

import functools

from tf_contrastive.base import callables
from tf_contrastive.config import own
from tf_contrastive.config.components import Component, Family, by_name
from tf_contrastive.config.fields import option

# Of a layer. Two layers this wide have 17 GB of weights.
_MAX_UNITS = 65_536


class HeadDeclaration(Component):
    """Traits of a projection head."""

    def sizes(self, features: int) -> list[int]:
        """Returns the dimensions from the features to the projections."""
        return [features]


class Identity(HeadDeclaration):
    """The features themselves."""

    name = "identity"
    implementation = "tf_contrastive.heads:build_identity"


class Linear(HeadDeclaration):
    """One dense layer."""

    name = "linear"
    implementation = "tf_contrastive.heads:build_linear"

    output: int = option(
        128, "dimension of the projections", minimum=2, maximum=_MAX_UNITS
    )
    batch_norm: bool = option(
        True,
        "batch normalization after the projection head's layers; auto: as in"
        " the code of the loss's authors, no for supcon, supcon_in, sincere and"
        " eps_supinfonce, else yes",
    )
    bias: bool = option(
        False,
        "bias of the projection head's last layer; with batch normalization"
        " its offset (beta); auto: yes for sincere and eps_supinfonce, else no",
    )

    def sizes(self, features: int) -> list[int]:
        """Returns the dimensions from the features to the projections."""
        return [features, self.output]


class MLP(Linear):
    """Dense layers with ReLU between them."""

    name = "mlp"
    implementation = "tf_contrastive.heads"

    layers: int = option(2, "dense layers of the mlp", minimum=2, maximum=4)
    hidden: int | None = option(
        None,
        "units of the hidden layers; auto: the dimension of the features",
        maximum=_MAX_UNITS,
    )

    def sizes(self, features: int) -> list[int]:
        """Returns the dimensions from the features to the projections."""
        hidden = [self.hidden or features] * (self.layers - 1)
        return [features, *hidden, self.output]


@functools.cache
def own_head(name: str) -> type[HeadDeclaration]:
    """Returns the declaration of a head of your own, `module:name`."""
    part = own.load("projection", name)
    options = callables.options_of(part, kind="projection")
    return own.declare(name, HeadDeclaration, options)


HEADS: dict[str, type[HeadDeclaration]] = by_name([Identity, Linear, MLP])
# The head ignores others' options.
PROJECTION = Family(
    kind="projection",
    members=HEADS,
    help="projection head; module:name: a Keras layer of your own, or a"
    " function that returns one",
    declare=lambda name: (HEADS.get(name) or own_head(name))(),
    flags=("output", "layers"),
    prefixed=MLP.defaults(),
    ignores_others=True,
).option(MLP())
