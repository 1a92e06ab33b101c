"""Evaluates any encoder from arrays of its embeddings.

Use: python examples/evaluate_encoder.py, or cell by cell in an editor that
supports notebooks: each `# %%` starts a cell. Takes seconds.
"""

# %% [markdown]
# An encoder maps an image to an embedding [D]: a Keras application, a
# SavedModel, a network of another framework. The protocols take arrays:
# embeddings float [n, D] and labels int [n] of a training and a test split.

# %%
import functools
import tempfile

import numpy as np
import tensorflow as tf

import tf_contrastive
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
# This example trains and saves a small classifier as the encoder to evaluate.


# %%
def network():
    """Builds a digit classifier with random weights, for pixels in [-1, 1]."""
    return tf.keras.Sequential(
        [
            tf.keras.Input([8, 8, 3]),
            tf.keras.layers.Conv2D(32, 3, 2, "same", activation="relu"),
            tf.keras.layers.Conv2D(64, 3, 2, "same", activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(name="features"),
            tf.keras.layers.Dense(10),
        ]
    )


classifier = network()
classifier.compile(
    tf.keras.optimizers.Adam(1e-2),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
classifier.fit(
    train_images / 127.5 - 1, train_labels, 128, epochs=15, verbose=0
)
folder = tempfile.TemporaryDirectory()
path = f"{folder.name}/classifier.keras"
classifier.save(path)

# %% [markdown]
# ## Embeddings
# Scale pixels as in the encoder's training: to [-1, 1] here, to [0, 1] for
# encoders of this package (`tf_contrastive.load(path)` loads a run or an
# export). Use the features, not the classes.


# %%
def embeddings(model):
    """Returns the four arguments of a protocol."""
    encoder = tf.keras.Model(model.input, model.get_layer("features").output)
    train, test = (
        encoder.predict(images / 127.5 - 1, verbose=0)
        for images in (train_images, test_images)
    )
    return train, train_labels, test, test_labels


trained = embeddings(tf.keras.models.load_model(path))
untrained = embeddings(network())

# %% [markdown]
# `python -m tf_contrastive encoders` lists the encoders in the package. This
# one was trained with SupCon.

# %%
supcon = tf_contrastive.load("pretrained:digits-supcon-resnet10")
ours = supcon(train_images), train_labels, supcon(test_images), test_labels

# %% [markdown]
# ## Protocols
# All encoders are scored on the same images. The difference of the trained and
# the untrained classifier is tested in pairs: by a 95 % bootstrap interval and
# a permutation test. Logistic regression selects its penalty on a part of
# train; test is scored once.

# %%
protocols = {
    "kNN": evaluation.knn,
    "prototype": evaluation.prototype,
    "linear probe": evaluation.linear_probe,
    # Fewer penalties than the default of 45.
    "logistic regression": functools.partial(
        evaluation.logistic_regression, path=np.geomspace(1e2, 1e-5, 8)
    ),
}
print(f"{'top-1':20}  SupCon  trained  untrained  difference, 95 %  verdict")
for name, protocol in protocols.items():
    best, correct, baseline = (
        protocol(*four)["predictions"] == test_labels
        for four in (ours, trained, untrained)
    )
    result = evaluation.compare(correct, baseline)
    print(
        f"{name:20}  {best.mean():.4f}"
        f"   {correct.mean():.4f}     {baseline.mean():.4f}"
        f"  {result['low']:+.3f} to {result['high']:+.3f}  {result['verdict']}"
    )

# %% [markdown]
# Which classes are well separated? The margin is the cosine similarity of a
# test image to its own class in train, minus that to the nearest other class.

# %%
margins = evaluation.separation_margin(*trained)
worst = int(np.nanargmin(margins["per_class"]))
print(f"margin: mean {margins['mean']:.3f}, smallest for digit {worst}")
