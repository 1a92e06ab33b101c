"""Datasets that probe what an encoder learns (Chen, Luo and Li 2021).

They are made of other datasets, or of MNIST's digits, as the options in a name
say (`config.dataset_names.PROBING_DATASETS`); sections 3.1, 4.1 and C.

What is drawn for an image depends on the seed in the name and on the image's
index or contents, never on the epoch: it is the same in every view, in every
slice, and on any machine.
"""

from tf_contrastive.papers.datasets.bits import kbits, randbit
from tf_contrastive.papers.datasets.canvas import multidigits
from tf_contrastive.papers.datasets.overlay import digit_on_image

# Additions to `datasets.DERIVED`.
DATASETS = {
    "multidigits": multidigits,
    "digit_on_image": digit_on_image,
    "randbit": randbit,
    "kbits": kbits,
}
