"""Optimizers against NumPy transcriptions of their update rules."""

import functools

import numpy as np
import pytest
import replicas as on_replicas
import small
import tensorflow as tf

from tf_contrastive import datasets, heads, losses, optimizers, train
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.config.runtime import Machine
from tf_contrastive.model import networks

# The last is exempt, whatever its rank.
SHAPES = ((4, 3), (3,), (2, 2, 3), (), (2, 3))
RATE, DECAY = 0.1, 0.01
VARIANTS = [
    ("lars", {}),
    ("lars", {"nesterov": True}),
    ("lars", {"momentum_style": "pytorch"}),
    ("lars", {"momentum_style": "pytorch", "nesterov": True}),
    ("sgd", {}),
    ("sgd", {"nesterov": True}),
    ("sgd", {"momentum_style": "pytorch"}),
    ("sgd", {"momentum_style": "pytorch", "nesterov": True}),
    ("sgd", {"momentum": 0.0}),
    ("rmsprop", {}),
    ("adam", {}),
    ("adam", {"beta_1": 0.0, "epsilon": 1e-3}),
    ("adamw", {}),
]


def _weights(seed=0):
    generator = np.random.default_rng(seed)
    return [
        generator.standard_normal(shape).astype(np.float32) for shape in SHAPES
    ]


def _gradients(step):
    return _weights(100 + step)


def _rates(step):
    """Differ from step to step: else both styles of momentum are the same."""
    return RATE * (1 + step % 3)


class _Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return RATE * (1 + tf.cast(step % 3, tf.float32))


# ---- The update rules, in float64, of one variable ---------------------------
#
# Each yields the weights after every step. `plain` are those without decay and
# adaptation.


def _sgd(
    w,
    gradients,
    plain,
    momentum_style="classic",
    nesterov=False,
    momentum=0.9,
    coefficient=None,
):
    v = np.zeros_like(w)

    def trust(x):
        if plain or not coefficient:
            return 1.0
        return coefficient * np.linalg.norm(w) / np.linalg.norm(x)

    for step, g in enumerate(gradients):
        lr = _rates(step)
        g = g if plain else g + DECAY * w
        if momentum_style == "classic":
            scaled = lr * trust(g) * g
            v = momentum * v + scaled
            w = w - (momentum * v + scaled if nesterov else v)
        else:  # As PyTorch's documentation has it.
            v = momentum * v + g
            update = g + momentum * v if nesterov else v
            w = w - lr * trust(update) * update
        yield w


def _rmsprop(w, gradients, plain):
    s, v = np.zeros_like(w), np.zeros_like(w)
    for step, g in enumerate(gradients):
        g = g if plain else g + DECAY * w
        s = 0.9 * s + 0.1 * g**2
        v = 0.9 * v + _rates(step) * g / np.sqrt(s + 1.0)
        w = w - v
        yield w


def _adam(w, gradients, plain, beta_1=0.9, epsilon=1e-8, decoupled=False):
    m, s = np.zeros_like(w), np.zeros_like(w)
    for step, g in enumerate(gradients):
        lr, t = _rates(step), step + 1
        if not plain and decoupled:
            w = w - lr * DECAY * w
        elif not plain:
            g = g + DECAY * w
        m = beta_1 * m + (1 - beta_1) * g
        s = 0.999 * s + 0.001 * g**2
        lr *= np.sqrt(1 - 0.999**t) / (1 - beta_1**t)
        w = w - lr * m / (np.sqrt(s) + epsilon)
        yield w


_RULES = {
    "lars": functools.partial(_sgd, coefficient=0.02),
    "sgd": _sgd,
    "rmsprop": _rmsprop,
    "adam": _adam,
    "adamw": functools.partial(_adam, decoupled=True),
}


def _transcribed(name, steps, options):
    finals = []
    for i, weights in enumerate(_weights()):
        gradients = [_gradients(s)[i].astype(np.float64) for s in range(steps)]
        plain = weights.ndim < 2 or i == len(SHAPES) - 1
        for moved in _RULES[name](
            weights.astype(np.float64), gradients, plain, **options
        ):
            final = moved
        finals.append(final)
    return finals


# Keras rounds 1 - beta_2^t of Adam to fewer digits.
_TOLERANCES = {"adam": 5e-5, "adamw": 5e-5}


def _assert_close(variables, expected, tolerance=1e-6):
    for variable, value in zip(variables, expected, strict=True):
        error = np.linalg.norm(variable - value) / np.linalg.norm(value)
        assert error <= tolerance


# ---- What is compared with them ----------------------------------------------


def _variables():
    return [tf.Variable(w, name=f"w{i}") for i, w in enumerate(_weights())]


def _build(name, variables, options=None, learning_rate=None):
    of_lars = {"trust_coefficient": 0.02} if name == "lars" else {}
    return optimizers.build(
        name,
        learning_rate=learning_rate or _Schedule(),
        exempt=variables[-1:],
        weight_decay=DECAY,
        **of_lars,
        **(options or {}),
    )


@pytest.mark.parametrize("how", ["eager", "compiled", "two replicas"])
@pytest.mark.parametrize("name,options", VARIANTS, ids=str)
def test_steps_follow_the_update_rule(name, options, how):
    replicas = 2 if how == "two replicas" else 1
    strategy = on_replicas.strategy(replicas)
    with strategy.scope():
        variables = _variables()
        optimizer = _build(name, variables, options)
        optimizer.build(variables)

    def update(gradients):
        # The optimizer sums the parts of all replicas.
        parts = [g / replicas for g in gradients]
        optimizer.apply_gradients(zip(parts, variables, strict=True))

    def step(gradients):
        strategy.run(update, [gradients])

    if how != "eager":
        step = tf.function(step, jit_compile=how == "compiled" or None)
    for i in range(20):
        step([tf.constant(g) for g in _gradients(i)])
    expected = _transcribed(name, 20, options)
    for replica in range(replicas):
        values = [
            strategy.experimental_local_results(variable)[replica]
            for variable in variables
        ]
        _assert_close(values, expected, _TOLERANCES.get(name, 1e-6))
    assert optimizer.iterations.numpy() == 20


# ---- Who is exempt -----------------------------------------------------------


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_decay_all_decays_every_variable_as_pytorch_does(name):
    variables = [tf.Variable(x) for x in ([[2.0]], [2.0], 2.0)]
    optimizer = optimizers.build(
        name, learning_rate=0.5, weight_decay=0.1, decay_all=True
    )
    again = type(optimizer).from_config(optimizer.get_config())
    for chosen in (optimizer, again):
        before = [float(tf.squeeze(v)) for v in variables]
        chosen.apply_gradients([(tf.zeros_like(v), v) for v in variables])
        after = [float(tf.squeeze(v)) for v in variables]
        assert all(a < b for a, b in zip(after, before, strict=True))
        if name != "lars":  # Which adapts the step of the matrix only.
            np.testing.assert_allclose(after, after[0], rtol=1e-6)


def test_biases_and_scales_of_any_rank():
    inputs = tf.keras.Input([4, 6])
    attention = tf.keras.layers.MultiHeadAttention(2, 3)
    norm = tf.keras.layers.LayerNormalization(axis=(1, 2))
    batch_norm = tf.keras.layers.BatchNormalization(scale=False)
    x = batch_norm(norm(attention(inputs, inputs)))
    # Its name says nothing, or what is wrong.
    outputs = tf.keras.layers.Dense(3, name="gamma")(x)
    model = tf.keras.Model(inputs, outputs)
    found = optimizers.biases_and_scales(model)
    shapes = sorted(tuple(v.shape) for v in found)
    biases_of_attention = [(2, 3)] * 3 + [(6,)]
    expected = [*biases_of_attention, (4, 6), (4, 6), (6,), (3,)]
    assert shapes == sorted(expected)
    kernels = [v for v in model.trainable_variables if v.name.count("kernel")]
    assert len(kernels) + len(found) == len(model.trainable_variables)


@pytest.mark.parametrize(
    "weights,gradients,expected",
    [
        ([[0.0, 0.0]], [[3.0, 4.0]], [[-1.5, -2.0]]),
        ([[3.0, 4.0]], [[0.0, 0.0]], [[3.0, 4.0]]),
    ],
)
@pytest.mark.parametrize("style", ["classic", "pytorch"])
def test_trust_is_one_if_a_norm_is_zero(weights, gradients, expected, style):
    variable = tf.Variable(weights)
    optimizers.LARS(0.5, momentum_style=style).apply_gradients(
        [(tf.constant(gradients), variable)]
    )
    np.testing.assert_array_equal(variable, expected)


# ---- Precision, saving and restoring -----------------------------------------


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_slots_are_float32_under_mixed_precision(name):
    with networks.precision("mixed_bfloat16"):
        layer = tf.keras.layers.Dense(3)
        layer.build([None, 4])
    variables = layer.trainable_variables
    optimizer = optimizers.build(name, learning_rate=0.1)
    with tf.GradientTape() as tape:
        outputs = layer(tf.ones([2, 4]))
        loss = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 2)
    assert outputs.dtype == tf.bfloat16
    before = [v.numpy() for v in variables]
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    kinds = {v.dtype for v in optimizer.variables if v.shape.rank}
    assert kinds == {tf.float32}
    plain = [tf.Variable(x) for x in before]
    again = optimizers.build(name, learning_rate=0.1)
    again.apply_gradients(zip(gradients, plain, strict=True))
    _assert_close(variables, plain)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
@pytest.mark.parametrize("deferred", [False, True])
def test_a_restored_optimizer_continues(name, deferred, tmp_path):
    def apply(optimizer, variables, steps):
        for step in steps:
            gradients = [tf.constant(g) for g in _gradients(step)]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    variables = _variables()
    optimizer = _build(name, variables)
    apply(optimizer, variables, range(3))
    path = tf.train.Checkpoint(o=optimizer, v=variables).save(tmp_path / "c")
    apply(optimizer, variables, range(3, 7))

    restored = _variables()
    again = _build(name, restored)
    if not deferred:
        again.build(restored)
    checkpoint = tf.train.Checkpoint(o=again, v=restored)
    status = checkpoint.restore(path)
    apply(again, restored, range(3, 7))
    status.assert_consumed()
    assert again.iterations.numpy() == 7
    for a, b in zip(restored, variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


# ---- In a run ----------------------------------------------------------------


def test_biases_and_scales_of_a_run_are_exempt():
    run = fields.replace(
        small.RUN,
        optimizer="sgd",
        learning_rate=1.0,
        weight_decay=0.5,
        warmup_epochs=0.0,
    )
    inputs = tf.keras.Input([4])
    layer = tf.keras.layers.EinsumDense("ab,bcd->acd", [2, 3], bias_axes="cd")
    outputs = tf.keras.layers.Flatten()(layer(inputs))
    model = models.ContrastiveModel(
        tf.keras.Model(inputs, outputs),
        heads.build("linear", output=8),
        losses.build("supcon", temperature=0.1),
    )
    source = datasets.from_arrays(
        np.zeros([run.schedule.batch_size, 1, 1], np.uint8)
    )
    strategy = tf.distribute.get_strategy()
    train.PreparedRun(run, strategy, Machine(), source).compile(model)
    layer.bias.assign(tf.ones([2, 3]))
    before = layer.kernel.numpy()
    model.optimizer.apply_gradients(
        [(tf.zeros(v.shape), v) for v in model.pretrained_variables]
    )
    np.testing.assert_array_equal(layer.bias, tf.ones([2, 3]))
    np.testing.assert_allclose(layer.kernel, before / 2)


@pytest.mark.parametrize("option", ["amsgrad", "use_ema"])
def test_other_options_of_keras_are_refused(option):
    with pytest.raises(ValueError, match=f"{option}=True"):
        optimizers.Adam(0.1, **{option: True})
