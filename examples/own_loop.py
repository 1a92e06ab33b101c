"""Uses a contrastive loss in a custom training loop.

Use: python examples/own_loop.py, or cell by cell in an editor that supports
notebooks: each `# %%` starts a cell. Trains on digits, in seconds.
"""

# %% [markdown]
# Encoder, head, optimizer and loop are your own. The package provides the views
# of the images and the loss.

# %%
import tensorflow as tf

from tf_contrastive import datasets, evaluation, losses, views

tf.keras.utils.set_random_seed(0)
BATCH, VIEWS, EPOCHS = 256, 2, 20

# %% [markdown]
# ## Data
# Any `tf.data.Dataset` of images uint8 [h, w, 3] works. This one has elements
# `{"image": uint8 [8, 8, 3], "label": int64 []}`.

# %%
train, info = datasets.load("digits", "train")
test, test_info = datasets.load("digits", "test")
print(f"{info.num_examples} training images of shape {info.image_shape}")

# %% [markdown]
# ## Views
# A view depends only on its image and a seed. The seed here is the position of
# the image in the sequence of all epochs: every epoch has new views, and every
# run has the same ones.

# %%
policy = views.build(
    "simclr",
    image_size=8,
    # Photographs need stronger augmentation than digits of eight pixels, and a
    # mirrored digit is not a digit.
    flip=False,
    blur=False,
    min_crop_area=0.4,
    color_jitter_strength=0.5,
)
make_views = views.Views(policy, VIEWS)


def with_views(numbers, examples):
    """Returns views float32 [B, V, 8, 8, 3] in [0, 1], and labels [B]."""
    numbers = tf.cast(numbers, tf.int32)
    seeds = tf.stack([numbers, tf.zeros_like(numbers)], axis=1)
    return make_views(examples["image"], seeds), examples["label"]


batches = (
    train.cache()
    .shuffle(info.num_examples, seed=0)
    .repeat(EPOCHS)
    .enumerate()
    .batch(BATCH, drop_remainder=True)
    .map(with_views, tf.data.AUTOTUNE)
    .prefetch(tf.data.AUTOTUNE)
)

# %% [markdown]
# ## Model and loss
# The loss compares projections. The encoder's features are used afterwards.

# %%
encoder = tf.keras.Sequential(
    [
        tf.keras.Input([8, 8, 3]),
        tf.keras.layers.Conv2D(32, 3, 2, "same", activation="relu"),
        tf.keras.layers.Conv2D(64, 3, 2, "same", activation="relu"),
        tf.keras.layers.GlobalAveragePooling2D(),
    ]
)
head = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(32),
    ]
)
contrastive_loss = losses.build("supcon", temperature=0.1)
optimizer = tf.keras.optimizers.Adam(3e-3)

# %% [markdown]
# ## The loop
# Projections have an axis for the views: [B, V, P]. The loss normalizes them.


# %%
@tf.function
def train_step(images, labels):
    """Updates encoder and head; returns the loss, float32 []."""
    with tf.GradientTape() as tape:
        flat = tf.reshape(images, [-1, 8, 8, 3])
        projections = head(encoder(flat, training=True), training=True)
        projections = tf.reshape(projections, [BATCH, VIEWS, -1])
        loss = contrastive_loss(projections, labels)
        # In `strategy.run`, the loss gathers the global batch, and its mean
        # over replicas is the global loss. As in any loop for a strategy,
        # differentiate `loss / strategy.num_replicas_in_sync` there, since
        # gradients are summed.
    variables = encoder.trainable_variables + head.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss


def arrays(dataset, count):
    """Returns all images, scaled for the encoder, and all labels."""
    examples = dataset.batch(count).get_single_element()
    return examples["image"] / 255, examples["label"].numpy()


def scores():
    """Returns the top-1 of kNN and of nearest class means."""
    train_images, train_labels = arrays(train, info.num_examples)
    test_images, test_labels = arrays(test, test_info.num_examples)
    four = (
        encoder.predict(train_images, verbose=0),
        train_labels,
        encoder.predict(test_images, verbose=0),
        test_labels,
    )
    return evaluation.knn(*four)["top1"], evaluation.prototype(*four)["top1"]


before = scores()
history = [float(train_step(*batch)) for batch in batches]
after = scores()

# %%
print(
    f"loss: {history[0]:.3f} in the first step, {history[-1]:.3f} in the last"
)
for name, old, new in zip(("kNN", "prototype"), before, after, strict=True):
    print(f"{name} top-1: {old:.4f} untrained, {new:.4f} trained")
