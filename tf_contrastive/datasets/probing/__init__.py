"""Datasets that probe what an encoder learns, and parts of others.

Made of other datasets, or of MNIST's digits, as the options in a name say
(`config.PROBING_DATASETS`): Chen, Luo and Li 2021, "Intriguing properties of
contrastive losses", 3.1, 4.1 and C; class subsets; shares of the labels.

What is drawn for an image is drawn by the seed in the name and either the
image's place in its split or its contents, never by an epoch: the same in
every view, in every slice, and on any machine.
"""

from tf_contrastive import config
from tf_contrastive.datasets.probing.bits import kbits, randbit
from tf_contrastive.datasets.probing.canvas import multidigits
from tf_contrastive.datasets.probing.origin import Opener
from tf_contrastive.datasets.probing.overlay import digit_on_image
from tf_contrastive.datasets.probing.parts import cifar2, imagenet100, subset
from tf_contrastive.datasets.source import Source

__all__ = ["PROBING", "source"]

# Each takes (name, options, split, opener).
PROBING = {
    "multidigits": multidigits,
    "digit_on_image": digit_on_image,
    "randbit": randbit,
    "kbits": kbits,
    "subset": subset,
    "cifar2": cifar2,
    "imagenet100": imagenet100,
}


def source(name: str, split: str, open_inner: Opener) -> Source:
    """Opens a dataset of `PROBING`.

    Args:
      name: such as `multidigits:count=4` or `randbit:bits=5,of=cifar10`.
      split: see `datasets.source`.
      open_inner: opens the datasets that it is made of.

    Raises:
      UserError: for a name, or a split, that is not understood, or if what it
        is made of is not there.
    """
    options = config.read_probing(name)
    return PROBING[name.partition(":")[0]](name, options, split, open_inner)
