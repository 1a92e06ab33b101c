"""How good is someone else's encoder? Protocols on arrays of its embeddings.

Use: python examples/evaluate_encoder.py, or cell by cell: editors that know
notebooks take each `# %%` for the start of one. Takes seconds.
"""

# %% [markdown]
# An encoder is whatever makes an embedding [D] of an image: a Keras
# application, a SavedModel, a network of another framework. The protocols see
# arrays: embeddings float [n, D] and labels int [n], of a training and of a
# test split.

# %%
import functools
import tempfile

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets, evaluation

tf.keras.utils.set_random_seed(0)


def arrays(split):
    """All images uint8 [n, 8, 8, 3] and labels int [n] of a split."""
    data, info = datasets.load("digits", split)
    examples = data.batch(info.num_examples).get_single_element()
    return examples["image"].numpy(), examples["label"].numpy()


train_images, train_labels = arrays("train")
test_images, test_labels = arrays("test")

# %% [markdown]
# ## The encoder
# Here a small classifier stands in for one that somebody trained and saved.


# %%
def network():
    """A classifier of digits with random weights; pixels in [-1, 1]."""
    return tf.keras.Sequential(
        [
            tf.keras.Input([8, 8, 3]),
            tf.keras.layers.Conv2D(32, 3, 2, "same", activation="relu"),
            tf.keras.layers.Conv2D(64, 3, 2, "same", activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(name="features"),
            tf.keras.layers.Dense(10),
        ]
    )


theirs = network()
theirs.compile(
    tf.keras.optimizers.Adam(1e-2),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
theirs.fit(train_images / 127.5 - 1, train_labels, 128, epochs=15, verbose=0)
folder = tempfile.TemporaryDirectory()
path = f"{folder.name}/theirs.keras"
theirs.save(path)

# %% [markdown]
# ## Embeddings
# Give each encoder the pixels it was trained on: this one takes [-1, 1],
# encoders of this package [0, 1] (`tf_contrastive.load(path)` reads those of
# runs and exports). And take its features, not its classes.


# %%
def embeddings(model):
    """What the four arguments of a protocol are, for one encoder."""
    encoder = tf.keras.Model(model.input, model.get_layer("features").output)
    train, test = (
        encoder.predict(images / 127.5 - 1, verbose=0)
        for images in (train_images, test_images)
    )
    return train, train_labels, test, test_labels


trained = embeddings(tf.keras.models.load_model(path))
untrained = embeddings(network())

# %% [markdown]
# ## Protocols
# The same images are scored with both encoders, so the difference is tested in
# pairs: a bootstrap interval of 95 %, and a permutation test. Logistic
# regression chooses its penalty on a part of train; test is scored once.

# %%
protocols = {
    "kNN": evaluation.knn,
    "prototype": evaluation.prototype,
    "linear probe": evaluation.linear_probe,
    # Without a path of its own it tries 45 penalties.
    "logistic regression": functools.partial(
        evaluation.logistic_regression, path=np.geomspace(1e2, 1e-5, 8)
    ),
}
print(f"{'top-1':20} trained  untrained  difference, 95 %  verdict")
for name, protocol in protocols.items():
    ours, other = (
        protocol(*four)["predictions"] == test_labels
        for four in (trained, untrained)
    )
    found = evaluation.compare(ours, other)
    print(
        f"{name:20}  {ours.mean():.4f}     {other.mean():.4f}"
        f"  {found['low']:+.3f} to {found['high']:+.3f}  {found['verdict']}"
    )

# %% [markdown]
# Which classes lie apart? The margin is how much nearer (by cosine) a test
# image is to its own class in train than to any other.

# %%
margins = evaluation.separation_margin(*trained)
worst = int(np.nanargmin(margins["per_class"]))
print(f"margin: {margins['mean']:.3f} in the mean, least of digit {worst}")
