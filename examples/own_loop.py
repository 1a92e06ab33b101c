"""A contrastive loss in a Keras training loop of your own.

Use: python examples/own_loop.py, or cell by cell: editors that know notebooks
take each `# %%` for the start of one. Trains on embedded digits, in seconds.
"""

# %% [markdown]
# Encoder, head, optimizer and loop are yours. The package gives views of the
# images, and a loss that compares all of them with one another.

# %%
import tensorflow as tf

from tf_contrastive import datasets, evaluation, losses, views

tf.keras.utils.set_random_seed(0)
BATCH, VIEWS, EPOCHS = 256, 2, 20

# %% [markdown]
# ## Data
# Any `tf.data.Dataset` of images uint8 [h, w, 3] will do; this one has elements
# `{"image": uint8 [8, 8, 3], "label": int64 []}`.

# %%
train, info = datasets.load("digits", "train")
test, test_info = datasets.load("digits", "test")
print(f"{info.num_examples} training images of shape {info.image_shape}")

# %% [markdown]
# ## Views
# A view follows from its image and a seed, nothing else. The seed here is the
# image's number among all that are drawn: every epoch has other views, and the
# next run has the same ones again.

# %%
policy = views.build(
    "simclr",
    image_size=8,
    # What suits photographs is too much for eight pixels, and a mirrored digit
    # is another one, or none.
    flip=False,
    blur=False,
    min_crop_area=0.4,
    color_jitter_strength=0.5,
)
make_views = views.views(policy, VIEWS)


def with_views(numbers, examples):
    """Views float32 [B, V, 8, 8, 3] in [0, 1] of a batch, and labels [B]."""
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
# The loss sees projections; what is kept and used are the encoder's features.

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
loss_of = losses.build("supcon", temperature=0.1)
optimizer = tf.keras.optimizers.Adam(3e-3)

# %% [markdown]
# ## The loop
# Views stay on an axis of their own: projections are [B, V, P]. They need not
# be normalised, the loss does that.


# %%
@tf.function
def train_step(images, labels):
    """Updates encoder and head once; the loss, float32 []."""
    with tf.GradientTape() as tape:
        flat = tf.reshape(images, [-1, 8, 8, 3])
        projections = head(encoder(flat, training=True), training=True)
        projections = tf.reshape(projections, [BATCH, VIEWS, -1])
        loss = loss_of(projections, labels)
        # Inside of `strategy.run` the loss gathers the global batch by itself,
        # and its mean over replicas is the global loss. There, as in any loop
        # for a strategy, differentiate
        # `loss / strategy.num_replicas_in_sync`, since gradients are summed.
    variables = encoder.trainable_variables + head.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss


def arrays(dataset, count):
    """All images as the encoder takes them, and all labels."""
    examples = dataset.batch(count).get_single_element()
    return examples["image"] / 255, examples["label"].numpy()


def scores():
    """Accuracies of the nearest neighbours, and of the nearest class mean."""
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
seen = [float(train_step(*batch)) for batch in batches]
after = scores()

# %%
print(f"loss: {seen[0]:.3f} at first, {seen[-1]:.3f} at last")
for name, old, new in zip(("kNN", "prototype"), before, after, strict=True):
    print(f"{name} top-1: {old:.4f} untrained, {new:.4f} trained")
