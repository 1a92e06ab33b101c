"""Trains `ContrastiveModel` on arrays of images with `fit`.

Use: python examples/fit_arrays.py, or cell by cell in an editor that supports
notebooks: each `# %%` starts a cell. Trains on digits, in seconds.
"""

# %% [markdown]
# Replace the digits by your own arrays: images uint8 [n, h, w, 3] (or float in
# [0, 1], or with one channel), and labels int [n] from 0, names, or None.

# %%
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf

from tf_contrastive import (
    datasets,
    embedding,
    encoders,
    evaluation,
    heads,
    losses,
    optimizers,
    schedules,
    views,
)
from tf_contrastive.model import ContrastiveModel

tf.keras.utils.set_random_seed(0)

digits = sklearn.datasets.load_digits()
parts = sklearn.model_selection.train_test_split(
    digits.images / 16,
    digits.target,
    test_size=0.2,
    stratify=digits.target,
    random_state=0,
)
train_images, test_images, train_labels, test_labels = parts
print(f"{len(train_images)} training images of shape {train_images.shape[1:]}")

# %% [markdown]
# ## Batches of views
# Two views of each image, new ones in every epoch. Elements are
# (views float32 [B, V, S, S, 3], labels int32 [B]), or only the views without
# labels. The seed determines the order and the views.

# %%
BATCH, EPOCHS, SIDE = 256, 12, 8
policy = views.build(
    "simclr",
    image_size=SIDE,
    # Photographs need stronger augmentation than digits of eight pixels, and a
    # mirrored digit is not a digit.
    flip=False,
    blur=False,
    min_crop_area=0.4,
    color_jitter_strength=0.5,
)
source = datasets.from_arrays(train_images, train_labels)
batches = datasets.training_batches(
    source,
    datasets.ViewMaker(views.Views(policy, 2)),
    datasets.Order(batch_size=BATCH, seed=0),
)
steps = datasets.steps_per_epoch(len(train_images), BATCH)

# %% [markdown]
# ## Model
# Without labels: `losses.build("ntxent", temperature=0.1)`, and no probe. The
# probe is a linear classifier behind a stop-gradient: its accuracy measures the
# features during training without influencing them.

# %%
encoder = encoders.build(
    "resnet10", width=0.25, stem="cifar", image_shape=(SIDE, SIDE, 3)
)
model = ContrastiveModel(
    encoder,
    heads.build("mlp", output=64),
    losses.build("supcon", temperature=0.1),
    probe=heads.LinearProbe(10),
)
rate = schedules.build(
    "cosine",
    base_learning_rate=3.0,
    batch_size=BATCH,
    steps_per_epoch=steps,
    epochs=EPOCHS,
    warmup_epochs=2,
)
model.compile(optimizers.LARS(rate, weight_decay=1e-4))


# %%
history = model.fit(
    batches, epochs=EPOCHS, steps_per_epoch=steps, verbose=2
).history

# %% [markdown]
# ## Results
# `encoder(images)` maps float32 [n, S, S, 3] in [0, 1] to features [n, D].
# `exporting.export(model, folder)` writes a SavedModel that serves them.


# %%
def features(network, images, labels):
    """Returns features [n, D] of unaugmented images, and labels [n]."""
    batches = datasets.evaluation_batches(
        datasets.from_arrays(images, labels),
        views.evaluation(SIDE),
        batch_size=BATCH,
    )
    return embedding.embed(network, batches)


def top1(network):
    """Returns the accuracy of a kNN classifier on the test images."""
    return evaluation.knn(
        *features(network, train_images, train_labels),
        *features(network, test_images, test_labels),
    )["top1"]


# A random encoder to compare with. By default, residual blocks start as the
# identity, which is a weaker baseline.
untrained = encoders.build(
    "resnet10",
    width=0.25,
    stem="cifar",
    image_shape=(SIDE, SIDE, 3),
    zero_init_residual=False,
)
for name in ("loss", "contrastive_accuracy", "probe_accuracy"):
    first, last = history[name][0], history[name][-1]
    print(f"{name}: {first:.3f} in epoch 1, {last:.3f} in epoch {EPOCHS}")
print(
    f"kNN top-1: {top1(untrained):.4f} untrained, {top1(encoder):.4f} trained"
)
