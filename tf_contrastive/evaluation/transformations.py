"""The protocol `transforms`: which transformations h and z still encode.

Small networks learn to predict, from frozen embeddings, how an image was
transformed. Chen et al. 2020 (SimCLR), section 4.2, table 3.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.evaluation import statistics, view_embeddings
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Measurement
from tf_contrastive.views import ablation, color, prng

# Hidden units of the classifiers.
HIDDEN = 512


class Task(NamedTuple):
    """A transformation to predict."""

    fractions: tuple[float, ...]  # Of the classes; class 0 is unchanged.
    # (pixels float32 [n, S, S, 3], seeds int32 [n, 2]) -> the images of classes
    # 1, 2, ..., each float32 [n, S, S, 3].
    change: Callable[[tf.Tensor, np.ndarray], list[tf.Tensor]]


def _randomly(
    operation: Any, pixels: tf.Tensor, seeds: np.ndarray
) -> list[tf.Tensor]:
    return [operation(pixels, prng.uniform(seeds, operation.streams))]


# In the table's order. Colour is removed from a fifth of the images, as in
# SimCLR's augmentation, so that chance level is 80 %.
TASKS = {
    "color": Task(
        (0.8, 0.2), lambda *x: _randomly(color.Grayscale(probability=1.0), *x)
    ),
    "rotation": Task(
        (0.25,) * 4, lambda x, _: [tf.image.rot90(x, k) for k in (1, 2, 3)]
    ),
    "noise": Task(
        (0.5, 0.5),
        lambda x, seeds: _randomly(ablation.Noise(size=x.shape[1]), x, seeds),
    ),
    "sobel": Task((0.5, 0.5), lambda x, _: [ablation.sobel(x)]),
}


def transformed(
    batches: Iterable[tuple[Any, Any]], task: str, seed: int
) -> Iterator[tuple[tf.Tensor, np.ndarray]]:
    """Transforms each image randomly, by the seed and the image's index.

    Images are float32 [b, S, S, K], colours in [0, 1]; further channels are
    unchanged.

    Yields:
      (images, class of each transformation int64 [b]).
    """
    fractions, change = TASKS[task]
    # Two streams, so that the numbers do not depend on the size of batches.
    which, how = (np.random.RandomState([seed % 2**32, k]) for k in (0, 1))
    for images, _ in batches:
        images = tf.convert_to_tensor(images)
        uniform = which.uniform(size=len(images))
        kinds = np.searchsorted(np.cumsum(fractions)[:-1], uniform, "right")
        seeds = how.randint(-(2**31), 2**31, size=(len(images), 2))
        pixels = images[..., :3]
        changed = change(pixels, seeds.astype(np.int32))
        pixels = tf.stack([pixels, *changed], axis=1)
        pixels = tf.gather(pixels, kinds, axis=1, batch_dims=1)
        yield tf.concat([pixels, images[..., 3:]], axis=-1), kinds


def predict(
    train_embeddings: np.ndarray,
    train_kinds: np.ndarray,
    test_embeddings: np.ndarray,
    test_kinds: np.ndarray,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """Accuracy of a network with one hidden layer on frozen embeddings.

    It is trained by Adam on standardised features, with early stopping on a
    tenth of train.

    Embeddings are float [m, D] and [n, D], m at least 40; kinds are int from 0.

    Returns:
      {"top1": fraction, "chance": accuracy of the most frequent class of train,
      "predictions": int [n]}.
    """
    from sklearn import exceptions, neural_network, pipeline, preprocessing

    train, kinds, test = classifiers.check_train_and_test(
        train_embeddings, train_kinds, test_embeddings
    )
    truth = classifiers.check_labels("test_kinds", test_kinds, test)
    names, counts = np.unique(kinds, return_counts=True)
    network = pipeline.make_pipeline(
        preprocessing.StandardScaler(),
        neural_network.MLPClassifier(
            (HIDDEN,),
            batch_size=min(200, max(len(train) // 10, 1)),
            early_stopping=True,
            max_iter=100,
            random_state=seed % 2**32,
        ),
    )
    with warnings.catch_warnings():
        # A hundred epochs are enough, converged or not.
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        network.fit(train, kinds)
    predictions = network.predict(test)
    return {
        "top1": float((predictions == truth).mean()),
        "chance": float((truth == names[counts.argmax()]).mean()),
        "predictions": predictions,
    }


def measure(
    context: EvaluationContext,
    *,
    transforms_train: int,
    transforms_test: int,
    seed: int,
) -> Measurement:
    """Predicts transformations from h and, if there is a projection, from z."""
    sources = {}
    for split, size in (("train", transforms_train), ("test", transforms_test)):
        source = context.data.source(split)
        rows = view_embeddings.sample(source.info.num_examples, size, seed)
        sources[split] = source.select(rows)

    def seed_of(task: str, split: str) -> int:
        return 100 * seed + 2 * list(TASKS).index(task) + (split == "test")

    # One stream of batches, since each call would trace the encoder again.
    embedded = context.subject.embed_batches(
        batch
        for task in TASKS
        for split, source in sources.items()
        for batch in transformed(
            context.images(source), task, seed_of(task, split)
        )
    )
    metrics: dict[str, Any] = {}
    for task in TASKS:
        arrays = [
            _take(embedded, source.info.num_examples)
            for source in sources.values()
        ]
        spaces = {"h": arrays}
        if context.subject.projection is not None:
            spaces["z"] = [(context.project(h), kinds) for h, kinds in arrays]
        for space, (train, test) in spaces.items():
            scores = predict(*train, *test, seed=seed)
            correct = scores["predictions"] == test[1]
            metrics[f"{task}_{space}"] = scores["top1"]
            metrics[f"{task}_{space}_interval"] = statistics.interval(correct)
            metrics[f"{task}_chance"] = scores["chance"]
        line = ", ".join(f"{s} {metrics[f'{task}_{s}']:.3f}" for s in spaces)
        context.log(f"transforms, {task}: {line}")
    return {"metrics": metrics}


def _take(
    embedded: Iterator[tuple[np.ndarray, np.ndarray]], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Takes whole batches of `count` rows in total: (h [n, D], kinds [n])."""
    parts, taken = [], 0
    while taken < count:
        parts.append(next(embedded))
        taken += len(parts[-1][1])
    h, kinds = zip(*parts, strict=True)
    return np.concatenate(h), np.concatenate(kinds)
