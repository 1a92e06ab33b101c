"""Strategies by name, and gathering across replicas with its gradient."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import config, distribution


def _run(replicas, function):
    """Runs `function(replica id)`; returns every replica's result."""
    strategy = distribution.strategy("mirrored", virtual_devices=replicas)

    @tf.function
    def run():
        return strategy.run(lambda: function(distribution.replica_id()))

    return [x.numpy() for x in strategy.experimental_local_results(run())]


@pytest.mark.parametrize("replicas", [2, 4])
def test_concat_is_in_replica_order_on_every_replica(replicas):
    def local(replica):
        return distribution.cross_replica_concat(
            tf.stack([[2 * replica, 0], [2 * replica + 1, 0]])
        )

    for gathered in _run(replicas, local):
        np.testing.assert_array_equal(gathered[:, 0], np.arange(2 * replicas))


def test_concat_has_a_static_shape_and_is_the_identity_alone():
    x = tf.ones([3, 5])
    assert distribution.cross_replica_concat(x) is x
    strategy = distribution.strategy("mirrored", virtual_devices=2)
    shapes = []

    @tf.function
    def run():
        def step():
            gathered = distribution.cross_replica_concat(tf.ones([3, 5]))
            shapes.append(gathered.shape.as_list())

        strategy.run(step)

    run()
    assert shapes == [[6, 5], [6, 5]]


def test_gradient_is_that_of_the_sum_over_replicas():
    def local(replica):
        x = tf.cast(replica, tf.float32) + tf.constant([[1.0], [2.0]])
        weights = tf.cast(replica + 1, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            gathered = distribution.cross_replica_concat(x)
            loss = weights * tf.reduce_sum(gathered**2)
        return tape.gradient(loss, x)

    # The sum of all replicas' losses is (1 + 2) * sum of squares.
    for replica, gradient in enumerate(_run(2, local)):
        x = replica + np.array([[1.0], [2.0]])
        np.testing.assert_allclose(gradient, 3 * 2 * x)


def test_infinite_values_stay_in_their_rows():
    def local(replica):
        x = tf.fill([1], tf.cast(replica, tf.float32))
        return distribution.cross_replica_concat(
            tf.where(replica == 1, np.inf, x)
        )

    for gathered in _run(4, local):
        np.testing.assert_array_equal(gathered, [0, np.inf, 2, 3])


def test_half_precision_and_wide_integers_are_refused():
    for dtype in (tf.bfloat16, tf.float16, tf.int64):
        with pytest.raises(ValueError, match="cast to float32 or int32 first"):
            distribution.cross_replica_concat(tf.zeros([2], dtype))


def test_strategies_by_name(monkeypatch):
    assert distribution.strategy("default").num_replicas_in_sync == 1
    mirrored = distribution.strategy("auto", virtual_devices=2)
    assert mirrored.num_replicas_in_sync == 2
    assert distribution.is_chief(mirrored)
    with pytest.raises(config.UserError, match="did you mean 'mirrored'"):
        distribution.strategy("miror")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(config.UserError, match="TF_CONFIG is not set"):
        distribution.strategy("multiworker")
    with pytest.raises(config.UserError, match="no TPU at 'nowhere'"):
        distribution.strategy("tpu", tpu="nowhere")
    with pytest.raises(config.UserError, match="already started with 8"):
        distribution.strategy("mirrored", virtual_devices=16)


_WORKER = """
import numpy as np, tensorflow as tf
from tf_contrastive import distribution, losses
strategy = distribution.strategy("auto")
rng = np.random.default_rng(0)
z = rng.normal(size=[8, 2, 6]).astype(np.float32)
labels = np.array([0, 0, 0, 1, 2, 2, 3, 1], np.int32)
weights = rng.normal(size=[6, 4]).astype(np.float32)
with strategy.scope():
    w = tf.Variable(weights)
replicas = strategy.num_replicas_in_sync

@tf.function
def run(loss):
    def step():
        share = 8 // replicas
        first = distribution.replica_id() * share
        with tf.GradientTape() as tape:
            part = tf.constant(z)[first : first + share]
            part = tf.ensure_shape(part, [share, 2, 6])
            kinds = tf.constant(labels)[first : first + share]
            kinds = tf.ensure_shape(kinds, [share])
            value = loss(tf.einsum("bvp,pq->bvq", part, w), kinds) / replicas
        gradient = tape.gradient(value, w)
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", [value, gradient])
    return strategy.run(step)

for name in ("supcon", "sincere"):
    value, gradient = run(losses.build(name))
    print("RESULT", name, distribution.is_chief(strategy), replicas,
          float(value), *np.ravel(gradient))
"""


@pytest.mark.slow
def test_two_processes_compute_what_one_does():
    ports = [str(20000 + (os.getpid() * 2 + i) % 20000) for i in (0, 1)]
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}

    def start(index):
        environment = dict(os.environ)
        environment.pop("TF_CONFIG", None)
        if index is not None:
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps(
                {"cluster": cluster, "task": task}
            )
        return subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            cwd=Path(__file__).resolve().parents[1],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def results(process):
        out, _ = process.communicate(timeout=180)
        lines = [x.split() for x in out.splitlines() if x.startswith("RESULT")]
        numbers = {line[1]: np.array(line[4:], float) for line in lines}
        return tuple(lines[0][2:4]), numbers

    role, alone = results(start(None))
    workers = [results(p) for p in [start(0), start(1)]]
    assert role == ("True", "1")
    assert [w[0] for w in workers] == [("True", "2"), ("False", "2")]
    for _, numbers in workers:
        for name, expected in alone.items():
            error = np.linalg.norm(numbers[name] - expected)
            assert error < 1e-5 * np.linalg.norm(expected), name


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
