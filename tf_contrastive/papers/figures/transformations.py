"""Which transformation of an image h and z still tell.

The protocol `transforms`: small networks learn, from frozen representations, to
tell what was done to an image. Chen et al. 2020 (SimCLR), section 4.2, table 2.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.evaluation import projected, statistics
from tf_contrastive.papers.figures import plots
from tf_contrastive.views import ablation, color, prng

_FIELDS = RepresentationProtocols
# An image is one of colour if its channels differ by more than this.
_COLOUR = 1 / 255


class Task(NamedTuple):
    """What is to be told apart.

    Attributes:
      shares: of the classes, 0 being the image as it is.
      apply: (pixels float32 [n, S, S, 3], class of each int [n], seeds int32
        [n, 2]) -> float32 [n, S, S, 3].
    """

    shares: tuple[float, ...]
    apply: Callable[[tf.Tensor, np.ndarray, np.ndarray], tf.Tensor]


def _where(change: Callable) -> Callable:
    """Makes a transformation of class 1 alone."""

    def apply(pixels, kinds, seeds):
        changed = change(pixels, seeds)
        return tf.where((kinds == 1)[:, None, None, None], changed, pixels)

    return apply


def _gray(pixels, seeds):
    operation = color.Grayscale(probability=1.0)
    return operation(pixels, prng.uniform(seeds, operation.streams))


def _noise(pixels, seeds):
    operation = ablation.Noise(size=pixels.shape[1])
    return operation(pixels, prng.uniform(seeds, operation.streams))


def _sobel(pixels, seeds):
    del seeds
    return ablation.sobel(pixels)


def _rotate(pixels, kinds, seeds):
    del seeds
    turned = tf.stack([tf.image.rot90(pixels, k) for k in range(4)], axis=1)
    return tf.gather(turned, kinds, axis=1, batch_dims=1)


# In the order of table 2. Colour is dropped from a fifth of the images, as in
# SimCLR's augmentation, which makes 80 % of guessing.
TASKS = {
    "color": Task((0.8, 0.2), _where(_gray)),
    "rotation": Task((0.25,) * 4, _rotate),
    "noise": Task((0.5, 0.5), _where(_noise)),
    "sobel": Task((0.5, 0.5), _where(_sobel)),
}


def transformed(
    batches: Iterable[tuple[Any, Any]], task: str, seed: int
) -> Iterator[tuple[tf.Tensor, np.ndarray]]:
    """Does to each image what is drawn for it.

    Args:
      batches: of (images float32 [b, S, S, K], colours in [0, 1]; anything).
      task: a name of `TASKS`.
      seed: of what is drawn; an image's own depends on its place alone.

    Returns:
      Iterator of (images float32 [b, S, S, K], class int64 [b] of what was
      done to each). Channels beyond the colours stay as they are.

    Raises:
      UserError: for an unknown task.
    """
    if task not in TASKS:
        raise errors.unknown("transformation", task, TASKS)
    return _transformed(batches, TASKS[task], seed)


def _transformed(batches, task, seed):
    # Two streams, so that batches of another size draw the same.
    which, how = (np.random.RandomState([seed % 2**32, k]) for k in (0, 1))
    for images, _ in batches:
        images = tf.convert_to_tensor(images)
        unit = which.uniform(size=len(images))
        kinds = np.searchsorted(np.cumsum(task.shares)[:-1], unit, "right")
        seeds = how.randint(-(2**31), 2**31, size=(len(images), 2))
        made = task.apply(images[..., :3], kinds, seeds.astype(np.int32))
        yield tf.concat([made, images[..., 3:]], axis=-1), kinds


def predict(
    train_embeddings: np.ndarray,
    train_kinds: np.ndarray,
    test_embeddings: np.ndarray,
    test_kinds: np.ndarray,
    *,
    hidden: int = _FIELDS.transforms_hidden,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """Accuracy of a network of one hidden layer on frozen embeddings.

    It is trained by Adam on standardised features, until its accuracy on a
    tenth of train rises no more.

    Args:
      train_embeddings: float [m, D], m at least 20.
      train_kinds: int [m], from 0.
      test_embeddings: float [n, D].
      test_kinds: int [n], from 0.
      hidden: units of the hidden layer.
      seed: of its weights and of the order of rows.

    Returns:
      {"top1": fraction, "chance": of always guessing what is most frequent in
      train, "predictions": int [n]}.

    Raises:
      UserError: for NaN, shapes that do not fit, or too few rows.
    """
    from sklearn import exceptions, neural_network, pipeline, preprocessing

    train = classifiers.check_embeddings("train_embeddings", train_embeddings)
    kinds = classifiers.check_labels("train_kinds", train_kinds, train)
    test = classifiers.check_embeddings("test_embeddings", test_embeddings)
    wanted = classifiers.check_labels("test_kinds", test_kinds, test)
    names, counts = np.unique(kinds, return_counts=True)
    if len(train) < 20 or len(names) < 2 or counts.min() < 2:
        raise errors.UserError(
            f"{len(train)} training images have {counts.tolist()} of each"
            " transformation: give at least 20, and two of each of two"
        )
    network = pipeline.make_pipeline(
        preprocessing.StandardScaler(),
        neural_network.MLPClassifier(
            (hidden,),
            batch_size=min(200, max(len(train) // 10, 1)),
            early_stopping=True,
            max_iter=100,
            random_state=seed % 2**32,
        ),
    )
    with warnings.catch_warnings():
        # A hundred epochs are enough, whether or not it could go on.
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        network.fit(train, kinds)
    predictions = network.predict(test)
    return {
        "top1": float((predictions == wanted).mean()),
        "chance": float((wanted == names[counts.argmax()]).mean()),
        "predictions": predictions,
    }


def measure(
    subject: Any,
    *,
    transforms_train: int = _FIELDS.transforms_train,
    transforms_test: int = _FIELDS.transforms_test,
    transforms_hidden: int = _FIELDS.transforms_hidden,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """The protocol `transforms`: from h and, where there is one, from z.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.
      transforms_train, transforms_test: images of each split, at most.
      transforms_hidden: units of the networks that learn to tell.
      seed: which images, what is done to them, and of the networks.

    Returns:
      A measurement: metrics "<task>_h" and "<task>_z" (fractions), each with an
      "_interval" of 95 %, and "<task>_chance" of the tasks of `TASKS`, without
      color where the images have none; a plot.
    """
    rows = {
        split: projected.sample(
            subject.source(split).info.num_examples, most, seed
        )
        for split, most in (
            ("train", transforms_train),
            ("test", transforms_test),
        )
    }

    def images(split):
        return projected.chosen(subject.images(split), rows[split])

    names = list(TASKS)
    if not _has_colour(images("test")):
        subject.say("transforms: the images have no colour to tell")
        names.remove("color")
    # One stream for all, because each call would trace the encoder anew.
    embedded = subject.embed_batches(
        batch
        for task in names
        for split in rows
        for batch in transformed(images(split), task, _seed(seed, task, split))
    )
    found: dict[str, Any] = {}
    for task in names:
        made = {
            split: _take(embedded, len(chosen))
            for split, chosen in rows.items()
        }
        found |= _scored(subject, task, made, transforms_hidden, seed)
    return {"metrics": found, "plots": {"transforms": plots.tasks(found)}}


def _scored(
    subject: Any,
    task: str,
    made: dict[str, tuple[np.ndarray, np.ndarray]],
    hidden: int,
    seed: int,
) -> dict[str, Any]:
    """Metrics of a task, of the (h [n, D], kinds [n]) of both splits."""
    spaces = {"h": made}
    if subject.projection is not None:
        spaces["z"] = {
            split: (subject.project(h), kinds)
            for split, (h, kinds) in made.items()
        }
    found: dict[str, Any] = {}
    for space, of_split in spaces.items():
        four = (*of_split["train"], *of_split["test"])
        scores = predict(*four, hidden=hidden, seed=seed)
        found[f"{task}_{space}"] = scores["top1"]
        found[f"{task}_{space}_interval"] = statistics.interval(
            scores["predictions"] == four[-1]
        )
        found[f"{task}_chance"] = scores["chance"]
    told = ", ".join(f"{s} {found[f'{task}_{s}']:.3f}" for s in spaces)
    subject.say(f"transforms, {task}: {told}")
    return found


def _seed(seed: int, task: str, split: str) -> int:
    """Of what is drawn for a task and a split."""
    return 100 * seed + 2 * list(TASKS).index(task) + (split == "test")


def _take(
    embedded: Iterator[tuple[np.ndarray, np.ndarray]], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Takes whole batches of so many rows in all: (h [n, D], kinds [n])."""
    parts, taken = [], 0
    while taken < count:
        parts.append(next(embedded))
        taken += len(parts[-1][1])
    h, kinds = zip(*parts, strict=True)
    return np.concatenate(h), np.concatenate(kinds)


def _has_colour(batches: Iterable[tuple[Any, Any]]) -> bool:
    return any(
        (np.ptp(np.asarray(images)[..., :3], axis=-1) > _COLOUR).any()
        for images, _ in batches
    )


def needs(subject: Any) -> str | None:
    """What keeps `transforms` from being measured, in one line, or None."""
    for source in (subject.train, subject.test):
        if source.info.num_examples < 20:
            return f"{source.info.name} has less than 20 images"
    return None
