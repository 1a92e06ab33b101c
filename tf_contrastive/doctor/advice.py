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

# Temperatures that papers train with, and a little more.
_COLDEST, _WARMEST = 0.03, 1.0
# Peak learning rates beyond which an optimizer's runs diverge, and below which
# that of LARS, whose steps are a thousandth of a weight, stands still.
_HIGHEST_RATE = {"sgd": 2.0, "rmsprop": 1.0, "adam": 0.02, "adamw": 0.02}
_LOWEST_LARS_RATE = 0.05
# Images from which on large-batch training wants a warm-up.
_LARGE_BATCH = 1024
# Numbers of which a channel's statistics are taken, at least: images.
_FEWEST_NORMALIZED = 16
_FEWEST_NEGATIVES = 62
_FEWEST_STEPS = 100
_MOST_DROPPED = 0.1
_MOST_WITHOUT = 0.05
# Share of the memory there is.
_MOST_MEMORY = 0.9
_LONGEST_UNSAVED_HOURS = 1.0
# A side up to which views are coloured less, and from which on a network
# without pooling is out of proportion.
_SMALL_SIDE = CIFAR_STEM_MAX_SIDE
_LARGE_SIDE = 2 * CIFAR_STEM_MAX_SIDE
# How much faster another precision must be to be worth its digits.
_WORTHWHILE = 1.1


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a run before it starts.

    Attributes:
      run: its resolved config.
      info: of its data.
      replicas: that share the batch.
      steps_per_epoch: whole batches.
      peak_learning_rate: after scaling.
      expected: positives; None where the loss compares nothing.
      memory: predicted, of a replica.
      available_memory: bytes there are for a replica; None: unknown.
      input_rate: images per second; None: not measured.
      step_rates: precision -> images per second, of those that were measured.
    """

    run: Pretrain
    info: datasets.Info
    replicas: int
    steps_per_epoch: int
    peak_learning_rate: float
    expected: Expected | None
    memory: Memory
    available_memory: int | None
    input_rate: float | None
    step_rates: dict[str, float]

    @property
    def step_rate(self) -> float | None:
        """Images per second at the run's own precision."""
        return self.step_rates.get(self.run.runtime.precision)

    @property
    def temperature(self) -> float | None:
        """That of the loss, if it has one."""
        loss = self.run.loss
        default = LOSS_OPTIONS[loss.loss].get("temperature")
        return default if loss.temperature is None else loss.temperature

    @property
    def hours(self) -> float | None:
        """Of the whole run, by the slower of input and step."""
        rates = [r for r in (self.input_rate, self.step_rate) if r]
        if self.step_rate is None:
            return None
        schedule = self.run.schedule
        images = schedule.epochs * self.steps_per_epoch * schedule.batch_size
        return images / min(rates) / 3600


def advise(facts: Facts) -> dict[str, str]:
    """Warns of what is known to go wrong: a short name -> one line."""
    return {
        check.__name__.lstrip("_"): text
        for check in CHECKS
        for text in check(facts)
    }


def recommended_precision(facts: Facts) -> str | None:
    """The precision that is fastest, if it is worth a change."""
    rates = facts.step_rates
    if facts.step_rate is None or len(rates) < 2:
        return None
    best = max(rates, key=rates.get)
    return best if rates[best] > _WORTHWHILE * facts.step_rate else None


def _temperature(facts: Facts) -> Iterator[str]:
    found = facts.temperature
    if found is None:
        return
    if found < _COLDEST:
        yield (
            f"temperature={found:g} makes gradients of the nearest pairs"
            " alone, which is where losses become NaN: give 0.05 to 0.5"
        )
    if found > _WARMEST:
        yield (
            f"temperature={found:g} hardly tells near from far: give 0.05 to"
            " 0.5"
        )


def _normalization(facts: Facts) -> Iterator[str]:
    if facts.temperature is not None and (
        facts.run.loss.loss_normalize is False
    ):
        yield (
            "loss_normalize=False compares raw dot products, which grow without"
            " bound, where losses become NaN: leave it out"
        )


def _no_positives(facts: Facts) -> Iterator[str]:
    expected = facts.expected
    if expected is None:
        return
    if expected.without > _MOST_WITHOUT:
        yield (
            f"{expected.without:.0%} of the anchors have no positive in a batch"
            " and teach nothing: give views=2, a larger `batch_size` or"
            " sampler=class_balanced"
        )
    elif expected.labels and expected.other_images < 1:
        yield (
            f"an anchor meets {expected.other_images:.2f} other images of its"
            " class in a batch, so that labels hardly matter: give a larger"
            " `batch_size` or sampler=class_balanced"
        )


def _lone_classes(facts: Facts) -> Iterator[str]:
    expected = facts.expected
    if expected and expected.lone_classes and facts.run.views.views == 1:
        yield (
            f"{expected.lone_classes} classes have a single example, which"
            " never has a positive: give views=2"
        )


def _few_negatives(facts: Facts) -> Iterator[str]:
    expected = facts.expected
    if expected is None:
        return
    if expected.negatives < 1:
        yield (
            "no anchor has a negative, and all embeddings may become the same:"
            " give data of more than one class, or another `loss`"
        )
    elif not expected.labels and expected.negatives < _FEWEST_NEGATIVES:
        yield (
            f"an anchor has {expected.negatives:.0f} negatives: give a larger"
            " `batch_size` (256 and more), or loss=moco"
        )


def _queue(facts: Facts) -> Iterator[str]:
    size = facts.run.loss.queue_size
    if facts.run.loss.loss == "moco" and size >= facts.info.num_examples:
        yield (
            f"queue_size={size} holds every one of the"
            f" {facts.info.num_examples:,} images, an anchor's own among its"
            f" negatives: give at most {facts.info.num_examples // 2}"
        )


def _stem(facts: Facts) -> Iterator[str]:
    stem, side = facts.run.encoder.stem, facts.run.views.image_size
    if stem == "imagenet" and side <= _SMALL_SIDE:
        yield (
            f"stem=imagenet leaves {-(-side // 4)} of {side} pixels a side"
            " before the first block, which costs accuracy: give stem=cifar"
        )
    if stem == "cifar" and side >= _LARGE_SIDE:
        yield (
            f"stem=cifar at {side} pixels needs 16 times the memory and time"
            " of the other: give stem=imagenet"
        )


def _memory(facts: Facts) -> Iterator[str]:
    there = facts.available_memory
    if there and facts.memory.total > _MOST_MEMORY * there:
        yield (
            f"a replica needs about {facts.memory.total / 2**30:.1f} GiB, and"
            f" {there / 2**30:.1f} GiB are there: give a smaller `batch_size`"
            " or grad_cache_chunks=2 and more"
        )


def _strong_colours(facts: Facts) -> Iterator[str]:
    views = facts.run.views
    coloured = ("simclr", "broader", "simaugment", "stacked_randaugment")
    if views.augmentation not in coloured or views.image_size > _SMALL_SIDE:
        return
    given = []
    if views.color_jitter_strength >= 1:
        given.append(("`color_jitter_strength`", "color_jitter_strength=0.5"))
    if views.blur:
        given.append(("`blur`", "blur=False"))
    for flag, instead in given:
        yield (
            f"{flag} as for large photographs, at {views.image_size} pixels,"
            f" leaves little to recognise: give {instead}"
        )


def _mirrored_signs(facts: Facts) -> Iterator[str]:
    family = dataset_family(facts.info.name)
    if (
        facts.run.views.flip
        and DATASET_VIEW_DEFAULTS.get(family, {}).get("flip") is False
    ):
        yield (
            f"`flip` mirrors the signs of {family}, which makes others of them:"
            " give flip=False"
        )


def _learning_rate(facts: Facts) -> Iterator[str]:
    name, rate = facts.run.optimizer.optimizer, facts.peak_learning_rate
    highest = _HIGHEST_RATE.get(name)
    if highest and rate > highest:
        yield (
            f"a peak learning rate of {rate:g} is one for lars; {name} diverges"
            f" beyond about {highest:g}: give a lower `learning_rate`"
        )
    if name == "lars" and rate < _LOWEST_LARS_RATE:
        yield (
            f"a peak learning rate of {rate:g} hardly moves a weight by lars,"
            " which takes a thousandth of it: give learning_rate=0.3 per 256"
            " images"
        )


def _warmup(facts: Facts) -> Iterator[str]:
    schedule = facts.run.schedule
    if schedule.batch_size >= _LARGE_BATCH and not schedule.warmup_epochs:
        yield (
            f"warmup_epochs=0 with batch_size={schedule.batch_size}: such"
            " runs diverge in their first steps: give warmup_epochs=10"
        )


def _normalized_images(facts: Facts) -> Iterator[str]:
    run = facts.run
    chunks = run.loss.grad_cache_chunks
    images = run.schedule.batch_size * run.views.views // chunks
    if images < _FEWEST_NORMALIZED:
        yield (
            f"BatchNorm takes its statistics of {images} views at a time, too"
            " few: give a larger `batch_size`"
            + (" or fewer `grad_cache_chunks`" if chunks > 1 else "")
        )


def _small_share(facts: Facts) -> Iterator[str]:
    images = facts.run.schedule.batch_size // facts.replicas
    if facts.replicas > 1 and images <= 2:
        yield (
            f"{images} image(s) per replica: {facts.replicas} replicas spend"
            " their time on one another: give a larger `batch_size`"
        )


def _dropped(facts: Facts) -> Iterator[str]:
    count, size = facts.info.num_examples, facts.run.schedule.batch_size
    if count % size > _MOST_DROPPED * count:
        yield (
            f"every epoch drops {count % size:,} of {count:,} images, which do"
            f" not fill a batch: give a smaller `batch_size`"
        )


def _few_steps(facts: Facts) -> Iterator[str]:
    steps = facts.run.schedule.epochs * facts.steps_per_epoch
    if steps < _FEWEST_STEPS:
        yield (
            f"{steps} steps in all are too few to learn much: give more"
            " `epochs` or a smaller `batch_size`"
        )


def _blind(facts: Facts) -> Iterator[str]:
    if facts.info.has_labels and not facts.run.probe.probe:
        yield (
            "probe=False: nothing tells during the run how good features are; a"
            " falling loss does not: leave it out"
        )


def _input(facts: Facts) -> Iterator[str]:
    given, wanted = facts.input_rate, facts.step_rate
    if given and wanted and given < wanted:
        yield (
            f"the input gives {given:,.0f} images/s, the step takes"
            f" {wanted:,.0f}: devices wait {1 - given / wanted:.0%} of the"
            " time: give augment_on=device, cache=memory or"
            " `data_service`"
        )


def _unsaved(facts: Facts) -> Iterator[str]:
    if facts.hours is None or facts.run.runtime.checkpoint_every_steps:
        return
    epoch = facts.hours / facts.run.schedule.epochs
    if epoch > _LONGEST_UNSAVED_HOURS:
        yield (
            f"a crash would cost up to {epoch:.1f} hours, since checkpoints are"
            " written at the end of an epoch: give `checkpoint_every_steps`"
        )


CHECKS: tuple[Callable[[Facts], Iterator[str]], ...] = (
    _stem,
    _strong_colours,
    _mirrored_signs,
    _memory,
    _input,
    _no_positives,
    _lone_classes,
    _few_negatives,
    _queue,
    _temperature,
    _normalization,
    _learning_rate,
    _warmup,
    _normalized_images,
    _small_share,
    _dropped,
    _few_steps,
    _blind,
    _unsaved,
)
