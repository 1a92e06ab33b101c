"""The model: the plain training step and its features.

Each base of `ContrastiveModel` is a feature in a module of its own. Without the
module, and its line here, the feature is gone and nothing else, except for what
callbacks read of the last three.
"""

from tf_contrastive.model.averaged_encoder import AveragedEncoder
from tf_contrastive.model.device_augmentation import DeviceAugmentation
from tf_contrastive.model.gradient_cache import GradientCache
from tf_contrastive.model.input_wait import InputWait
from tf_contrastive.model.loss_scaling import LossScaling
from tf_contrastive.model.mixing import Mixing
from tf_contrastive.model.momentum_encoder import MomentumEncoder
from tf_contrastive.model.non_finite import NonFinite
from tf_contrastive.model.online_knn import OnlineKNN
from tf_contrastive.model.online_probe import OnlineProbe
from tf_contrastive.model.small_views import SmallViews


class ContrastiveModel(
    AveragedEncoder,
    MomentumEncoder,
    OnlineKNN,
    Mixing,
    DeviceAugmentation,
    SmallViews,
    GradientCache,
    OnlineProbe,
    LossScaling,
    NonFinite,
    InputWait,
):
    """Trains an encoder by a contrastive loss, under any `tf.distribute`.

    `fit` takes (views [B, V, H, W, K], labels [B]), or views alone, as floats
    in [0, 1] or as uint8. With `augment` or `mix` the views come with seeds for
    the step's random operations: ((views, seeds [B, V, 2]), labels). For views
    of a second size see `small_views.SmallViews`.

    Args:
      encoder: any Keras model, images float32 [N, H, W, K] in [0, 1] ->
        features h [N, D]. On several replicas, Keras' BatchNormalization in it
        becomes synchronized, as in the head.
      projection_head: any Keras layer, h [N, D] -> z [N, P].
      loss: of `losses`, or a function of your own, see `losses.FunctionLoss`:
        (z [B, V, P], labels, seed) -> float32 [].
      probe: h [N, D] -> logits [N, C], trained behind a stop-gradient (Chen et
        al. 2020, appendix B.6); None: no probe.
      cross_entropy_weight: of the probe's cross entropy in the loss, if encoder
        and probe are trained jointly; 0: a stop-gradient.
      momentum: of the key encoder's moving average, in [0, 1), for the loss
        "moco" (He et al. 2020).
      queue_size: keys kept as negatives, at least one global batch; None: the
        default of `config.loss.BatchOptions`.
      grad_cache_chunks: chunks in which a replica's images pass through the
        encoder, to save memory (Gao et al. 2021); divides their number.
      augment: (views float32 [B, V, H, W, K], seeds int32 [B, V, 2]) -> views,
        or None for views that are ready.
      mix: (views, labels int [B], seeds) -> (views, class fractions float32
        [B, V, C]), such as `views.mixup_cutmix.Mixing`, or None.
      online_knn_size: latest training images among which each batch looks for
        its nearest neighbors, where there are labels; 0: none.
      seed: of the random numbers that a loss may draw.
      unlabelled: whether labels may be -1, for images without one, which the
        probe and the nearest neighbors leave out; a loss with
        `unlabelled="own_views"` says so, too.
      ema: decay d of `averages` of the weights, in [0, 1); 0: none. After s
        steps the next one moves them by 1 - min(d, s / (s + 9)) to the weights:
        Polyak averaging with the warm-up of `tf.train.ExponentialMovingAverage`
        from the first step's weights on. `averages.use()` sets the weights.

    Raises:
      ValueError: for numbers out of range, a momentum with a loss that takes
        no keys, or a loss that takes keys without a momentum.
    """
