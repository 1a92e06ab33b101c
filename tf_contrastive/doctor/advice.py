"""Combinations that are known to go wrong, and what to do about each."""

import dataclasses
from collections.abc import Callable, Iterator

from tf_contrastive import datasets
from tf_contrastive.config.dataset_names import dataset_family
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE
from tf_contrastive.config.loss import LOSS_OPTIONS
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.views import DATASET_VIEW_DEFAULTS
from tf_contrastive.doctor.memory import Memory
from tf_contrastive.doctor.positives import Expected


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a run before it starts.

    Attributes:
      run: the resolved config.
      info: the training data.
      replicas: number of replicas that share the batch.
      steps_per_epoch: whole batches per epoch.
      peak_learning_rate: after scaling.
      expected: positives and negatives; None for a loss without pairs.
      memory: predicted bytes of a replica.
      available_memory: bytes available to a replica; None if unknown.
      input_speed: images per second; None if not measured.
      step_speed: images per second; None if not measured.
    """

    run: Pretrain
    info: datasets.Info
    replicas: int
    steps_per_epoch: int
    peak_learning_rate: float
    expected: Expected | None
    memory: Memory
    available_memory: int | None
    input_speed: float | None
    step_speed: float | None

    @property
    def temperature(self) -> float | None:
        """The loss's temperature, if it has one."""
        loss = self.run.loss
        default = LOSS_OPTIONS[loss.loss].get("temperature")
        return default if loss.temperature is None else loss.temperature

    @property
    def hours(self) -> float | None:
        """Duration of the run, by the slower of input and step."""
        if self.step_speed is None:
            return None
        schedule = self.run.schedule
        images = schedule.epochs * self.steps_per_epoch * schedule.batch_size
        speed = min(self.step_speed, self.input_speed or self.step_speed)
        return images / speed / 3600


def warnings(facts: Facts) -> dict[str, str]:
    """Runs every check.

    Returns:
      Check -> one line that says what is wrong and what to do, for each check
      that found something.
    """
    return {
        check.__name__.lstrip("_"): text
        for check in CHECKS
        for text in check(facts)
    }


# ---- Views and encoder -------------------------------------------------------

# Weak photometric augmentation suits views up to the small side; the stem for
# small images is out of proportion from the large side on.
_SMALL_SIDE = CIFAR_STEM_MAX_SIDE
_LARGE_SIDE = 2 * CIFAR_STEM_MAX_SIDE
_PHOTOMETRIC = ("simclr", "broader", "simaugment", "stacked_randaugment")


def _stem(facts: Facts) -> Iterator[str]:
    name, side = facts.run.encoder.stem, facts.run.views.image_size
    if name == "imagenet" and side <= _SMALL_SIDE:
        yield (
            f"stem=imagenet leaves {-(-side // 4)} of {side} pixels a side"
            " before the first block, which costs accuracy: use stem=cifar"
        )
    if name == "cifar" and side >= _LARGE_SIDE:
        yield (
            f"stem=cifar at {side} pixels takes 16 times the memory and time"
            " of stem=imagenet: use stem=imagenet"
        )


def _augmentation_strength(facts: Facts) -> Iterator[str]:
    views = facts.run.views
    if views.augmentation not in _PHOTOMETRIC or views.image_size > _SMALL_SIDE:
        return
    weaker = []
    if (views.color_jitter_strength or 0) >= 1:
        weaker.append("color_jitter_strength=0.5")
    if views.blur:
        weaker.append("blur=False")
    if not weaker:
        return
    yield (
        "the colour jitter or blur is made for large photographs and leaves"
        f" little to recognise at {views.image_size} pixels: use"
        f" {' and '.join(weaker)}"
    )


def _flip(facts: Facts) -> Iterator[str]:
    family = dataset_family(facts.info.name)
    if (
        facts.run.views.flip
        and DATASET_VIEW_DEFAULTS.get(family, {}).get("flip") is False
    ):
        yield (
            f"`flip` mirrors the signs of {family}, which changes their"
            " meaning: use flip=False"
        )


# ---- Resources ---------------------------------------------------------------

_MAX_MEMORY_FRACTION = 0.9
_MAX_UNSAVED_HOURS = 1.0


def _memory(facts: Facts) -> Iterator[str]:
    available = facts.available_memory
    if available and facts.memory.total > _MAX_MEMORY_FRACTION * available:
        yield (
            f"a replica needs about {facts.memory.total / 2**30:.1f} GiB of"
            f" {available / 2**30:.1f} GiB available: use a smaller"
            " `batch_size`, or grad_cache_chunks=2 or more"
        )


def _slow_input(facts: Facts) -> Iterator[str]:
    delivered, consumed = facts.input_speed, facts.step_speed
    if delivered and consumed and delivered < consumed:
        yield (
            f"the input delivers {delivered:,.0f} images/s and the step could"
            f" use {consumed:,.0f}: devices wait {1 - delivered / consumed:.0%}"
            " of the time: use augment_on=device, cache=memory or"
            " `data_service`"
        )


def _checkpoint_interval(facts: Facts) -> Iterator[str]:
    if facts.hours is None or facts.run.runtime.checkpoint_every_steps:
        return
    epoch = facts.hours / facts.run.schedule.epochs
    if epoch > _MAX_UNSAVED_HOURS:
        yield (
            f"a crash loses up to {epoch:.1f} hours, since checkpoints are"
            " written at the end of an epoch: set `checkpoint_every_steps`"
        )


# ---- Positives and negatives -------------------------------------------------

_MAX_WITHOUT_POSITIVES = 0.05
_MIN_NEGATIVES = 62


def _positives(facts: Facts) -> Iterator[str]:
    expected = facts.expected
    if expected is None:
        return
    if expected.without_positives > _MAX_WITHOUT_POSITIVES:
        yield (
            f"{expected.without_positives:.0%} of the anchors have no positive"
            " in the batch and teach nothing: use views=2, a larger"
            " `batch_size` or sampler=class_balanced"
        )
    elif expected.labels and expected.other_images < 1:
        yield (
            f"an anchor meets {expected.other_images:.2f} other images of its"
            " class in a batch, so labels hardly matter: use a larger"
            " `batch_size` or sampler=class_balanced"
        )


def _single_example_classes(facts: Facts) -> Iterator[str]:
    expected = facts.expected
    if (
        expected
        and expected.single_example_classes
        and facts.run.views.views == 1
    ):
        yield (
            f"{expected.single_example_classes} classes have a single example,"
            " which never has a positive: use views=2"
        )


def _negatives(facts: Facts) -> Iterator[str]:
    expected = facts.expected
    if expected is None:
        return
    if expected.negatives < 1:
        yield (
            "anchors have no negatives, so all embeddings may become equal:"
            " use data of more than one class, or another `loss`"
        )
    elif not expected.labels and expected.negatives < _MIN_NEGATIVES:
        yield (
            f"an anchor has {expected.negatives:.0f} negatives: use a larger"
            " `batch_size` (256 or more), or loss=moco"
        )


def _queue_size(facts: Facts) -> Iterator[str]:
    size, images = facts.run.loss.queue_size, facts.info.num_examples
    if facts.run.loss.loss == "moco" and size >= images:
        yield (
            f"queue_size={size} holds all {images:,} images, so each anchor is"
            f" among its own negatives: use at most queue_size={images // 2}"
        )


# ---- Loss and optimization ---------------------------------------------------

# A little beyond what papers train with.
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.03, 1.0
# Training diverges beyond these peaks. LARS moves a weight by a thousandth of
# its rate, so that small rates have no effect.
_MAX_RATE = {"sgd": 2.0, "rmsprop": 1.0, "adam": 0.02, "adamw": 0.02}
_MIN_LARS_RATE = 0.05
# Batches from this size on need a warm-up.
_LARGE_BATCH = 1024
# Views that BatchNorm needs for its statistics.
_MIN_NORMALIZED = 16
_MAX_DROPPED_FRACTION = 0.1
_MIN_STEPS = 100


def _temperature(facts: Facts) -> Iterator[str]:
    value = facts.temperature
    if value is not None and value < _MIN_TEMPERATURE:
        yield (
            f"temperature={value:g} leaves gradients to the nearest pairs only"
            " and may make the loss NaN: use 0.05 to 0.5"
        )
    if value is not None and value > _MAX_TEMPERATURE:
        yield (
            f"temperature={value:g} barely separates similar from dissimilar"
            " pairs: use 0.05 to 0.5"
        )


def _loss_normalize(facts: Facts) -> Iterator[str]:
    if facts.temperature is not None and facts.run.loss.loss_normalize is False:
        yield (
            "loss_normalize=False compares raw dot products, which grow without"
            " bound until the loss is NaN: use loss_normalize=True"
        )


def _learning_rate(facts: Facts) -> Iterator[str]:
    name, rate = facts.run.optimizer.optimizer, facts.peak_learning_rate
    if rate > _MAX_RATE.get(name, rate):
        yield (
            f"a peak learning rate of {rate:g} only suits LARS; {name} diverges"
            f" above about {_MAX_RATE[name]:g}: use a lower `learning_rate`"
        )
    if name == "lars" and rate < _MIN_LARS_RATE:
        yield (
            f"a peak learning rate of {rate:g} hardly moves a weight, since"
            " LARS takes a thousandth of it: use learning_rate=0.3 (per 256"
            " images)"
        )


def _warmup(facts: Facts) -> Iterator[str]:
    schedule = facts.run.schedule
    if schedule.batch_size >= _LARGE_BATCH and not schedule.warmup_epochs:
        yield (
            f"warmup_epochs=0 with batch_size={schedule.batch_size} diverges in"
            " the first steps: use warmup_epochs=10"
        )


def _batch_norm(facts: Facts) -> Iterator[str]:
    run = facts.run
    chunks = run.loss.grad_cache_chunks
    images = run.schedule.batch_size * run.views.views // chunks
    if images < _MIN_NORMALIZED:
        yield (
            f"BatchNorm computes its statistics from only {images} views: use a"
            " larger `batch_size`"
            + (" or fewer `grad_cache_chunks`" if chunks > 1 else "")
        )


def _replica_batch(facts: Facts) -> Iterator[str]:
    images = facts.run.schedule.batch_size // facts.replicas
    if facts.replicas > 1 and images <= 2:
        yield (
            f"{images} image(s) per replica: {facts.replicas} replicas mostly"
            " wait for each other: use a larger `batch_size`"
        )


def _dropped_images(facts: Facts) -> Iterator[str]:
    count, size = facts.info.num_examples, facts.run.schedule.batch_size
    if count % size > _MAX_DROPPED_FRACTION * count:
        yield (
            f"every epoch drops {count % size:,} of {count:,} images, which do"
            " not fill a batch: use a smaller `batch_size`"
        )


def _few_steps(facts: Facts) -> Iterator[str]:
    steps = facts.run.schedule.epochs * facts.steps_per_epoch
    if steps < _MIN_STEPS:
        yield (
            f"{steps} steps in total are too few to learn much: use more"
            " `epochs` or a smaller `batch_size`"
        )


def _probe(facts: Facts) -> Iterator[str]:
    if facts.info.has_labels and not facts.run.probe.probe:
        yield (
            "probe=False: a falling loss does not show how good the features"
            " are, and nothing else measures them: use probe=True"
        )


CHECKS: tuple[Callable[[Facts], Iterator[str]], ...] = (
    _stem,
    _augmentation_strength,
    _flip,
    _memory,
    _slow_input,
    _checkpoint_interval,
    _positives,
    _single_example_classes,
    _negatives,
    _queue_size,
    _temperature,
    _loss_normalize,
    _learning_rate,
    _warmup,
    _batch_norm,
    _replica_batch,
    _dropped_images,
    _few_steps,
    _probe,
)
