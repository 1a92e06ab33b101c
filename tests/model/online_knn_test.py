"""The online nearest neighbour: its bank, and a run it does not touch."""

import numpy as np
import pytest
import replicas as on_replicas
import small
import tensorflow as tf

from tf_contrastive import checkpoints, heads, losses, train
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.model.online_knn import OnlineNeighbors


def _expected(batches, size):
    """A slow transcription: a list of the latest, asked before it grows."""
    bank, shares = [], []
    for features, labels in batches:
        rows = features / np.linalg.norm(features, axis=1, keepdims=True)
        if bank:
            hits = [
                max(bank, key=lambda one: one[0] @ row)[1] == label
                for row, label in zip(rows, labels, strict=True)
            ]
            shares.append(np.mean(hits))
        else:
            shares.append(None)
        bank = (bank + list(zip(rows, labels, strict=True)))[-size:]
    return shares


def _batches(count=6, size=8, features=5, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        labels = rng.integers(0, 3, size).astype(np.int32)
        rows = rng.normal(size=[size, features]) + 2 * np.eye(3, 5)[labels]
        yield rows.astype(np.float32), labels


def test_it_is_the_nearest_of_the_latest():
    neighbors = OnlineNeighbors(20, 5)
    found = []
    for features, labels in _batches():
        share, there = neighbors(features, labels)
        found.append(float(share) if there else None)
        neighbors.enqueue(features, labels)
    assert found == pytest.approx(_expected(_batches(), 20))
    assert int(neighbors.entered) == 48
    assert set(found[1:]) != {found[1]}


def test_features_that_are_no_numbers_leave_a_gap():
    neighbors = OnlineNeighbors(4, 2)
    features = np.array([[1, 0], [np.nan, 0], [0, 1]], np.float32)
    neighbors.enqueue(features, np.array([5, 6, 7]))
    assert neighbors.labels.numpy().tolist() == [5, -1, 7, -1]
    assert np.isfinite(neighbors.bank).all()
    share, there = neighbors(features[[0, 2]], np.array([5, 7]))
    assert float(share) == float(there) == 1.0


def test_more_than_it_holds_is_refused():
    with pytest.raises(
        ValueError, match="online_knn_size=7 is less than the 8 images"
    ):
        OnlineNeighbors(7, 5).enqueue(*next(_batches()))
    with pytest.raises(ValueError, match="size=0"):
        OnlineNeighbors(0, 5)


def _model(**options):
    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.Input([4, 4, 3])
    x = tf.keras.layers.Dense(6)(tf.keras.layers.Flatten()(inputs))
    return models.ContrastiveModel(
        tf.keras.Model(inputs, x),
        heads.build("linear", output=4, batch_norm=False),
        losses.build("supcon"),
        **options,
    )


def _examples(n=48):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, n).astype(np.int32)
    views = rng.normal(size=[n, 2, 4, 4, 3]) + labels[:, None, None, None, None]
    return tf.data.Dataset.from_tensor_slices((views.astype("float32"), labels))


def _fitted(replicas, **options):
    strategy = on_replicas.strategy(replicas)
    with strategy.scope():
        built = _model(**options)
        built.compile(tf.keras.optimizers.SGD(0.05, jit_compile=False))
    history = built.fit(
        on_replicas.share(_examples(), 12, strategy),
        steps_per_epoch=4,
        epochs=2,
        verbose=0,
    )
    return built, history.history


@pytest.mark.slow
def test_it_changes_nothing_of_the_training():
    with_it, history = _fitted(1, online_knn_size=24)
    without, plain = _fitted(1)
    for mine, other in zip(
        with_it.encoder.get_weights(),
        without.encoder.get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, other)
    assert history["loss"] == plain["loss"]
    assert set(history) - set(plain) == {"online_knn_top1"}
    assert history["online_knn_top1"][-1] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 3])
def test_replicas_and_chunks_ask_the_same_bank(chunks):
    one, history = _fitted(1, online_knn_size=24)
    two, shared = _fitted(2, online_knn_size=24, grad_cache_chunks=chunks)
    np.testing.assert_allclose(
        history["online_knn_top1"], shared["online_knn_top1"], atol=0.03
    )
    np.testing.assert_allclose(
        one.neighbors.bank.numpy(), two.neighbors.bank.numpy(), atol=1e-4
    )
    np.testing.assert_array_equal(
        one.neighbors.labels.numpy(), two.neighbors.labels.numpy()
    )


@pytest.mark.slow
def test_the_step_compiles_under_xla():
    built = _model(online_knn_size=24)
    built.compile(
        tf.keras.optimizers.SGD(0.05, jit_compile=False), jit_compile=True
    )
    history = built.fit(
        _examples().batch(12, drop_remainder=True), epochs=2, verbose=0
    ).history
    expected = _fitted(1, online_knn_size=24)[1]
    np.testing.assert_allclose(
        history["online_knn_top1"], expected["online_knn_top1"], atol=0.03
    )


_RUN = {
    "dataset": "digits",
    "split": "train[:512]",
    "augmentation": "crop",
    "encoder": "resnet10",
    "width": 0.125,
    "batch_size": 128,
    "checkpoint_every_steps": 2,
    "keep_checkpoints": 9,
    "online_knn_size": 256,
}


@pytest.mark.slow
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    def pretrain(folder, epochs):
        run = fields.replace(
            small.RUN, workdir=str(folder), epochs=epochs, **_RUN
        )
        return train.pretrain(run)

    whole = pretrain(tmp_path / "whole", 2)
    assert 0 < whole.metrics["online_knn_top1"] <= 1
    # The same run, of which only the first half is left.
    part = tmp_path / "part"
    (part / "checkpoints").mkdir(parents=True)
    for path in (tmp_path / "whole").iterdir():
        if path.is_file():
            (part / path.name).write_bytes(path.read_bytes())
    for path in (tmp_path / "whole/checkpoints").iterdir():
        if path.name.startswith(("ckpt-4", "metadata")):
            (part / "checkpoints" / path.name).write_bytes(path.read_bytes())
    resumed = pretrain(part, 2)
    assert resumed.start_step == 4
    found = [
        tf.train.load_checkpoint(checkpoints.saved(str(folder))[-1])
        for folder in (tmp_path / "whole", part)
    ]
    names = [
        name
        for name in found[0].get_variable_to_shape_map()
        if "VARIABLE_VALUE" in name and "save_counter" not in name
    ]
    assert any("neighbors/bank" in name for name in names)
    for name in names:
        np.testing.assert_array_equal(
            found[0].get_tensor(name), found[1].get_tensor(name), err_msg=name
        )
    assert resumed.metrics == whole.metrics
