"""SimCLR's normalised temperature-scaled cross entropy."""

from tf_contrastive.losses.supcon import SupCon


class NTXent(SupCon):
    """NT-Xent: an image's other views are its positives; labels are ignored.

    Chen et al. 2020, Eq. 1, averaged over all anchors of the global batch:

        loss_i = -log(exp(z_i . z_j(i) / t) / sum_{k != i} exp(z_i . z_k / t))

    It is SupCon with the image's index as its label, which also says what
    holds for more than two views: each other view is a positive, averaged
    outside of the logarithm. google-research/simclr's code returns twice this
    (the sum of both directions instead of their mean).
    """

    needs_labels = False
