"""Each feature of the model can be left out: a step trains by the others."""

import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import train
from tf_contrastive.model import ContrastiveModel, networks

_PARTS = {
    "encoder",
    "projection_head",
    "optimizer",
    "probe",
    "probe_optimizer",
    "key_branch",
    "neighbors",
}
# What a checkpoint lacks without a feature, if anything.
_MISSING = {
    "MomentumEncoder": {"key_branch"},
    "OnlineKNN": {"neighbors"},
    "OnlineProbe": {"probe", "probe_optimizer"},
}
_ARGUMENTS = {
    "MomentumEncoder": {"momentum", "queue_size"},
    "OnlineKNN": {"online_knn_size"},
    "Mixing": {"mix"},
    "DeviceAugmentation": {"augment"},
    "GradientCache": {"grad_cache_chunks"},
    "OnlineProbe": {"probe", "cross_entropy_weight"},
}
_ALWAYS = {"encoder", "projection_head", "loss", "seed", "unlabelled", "name"}


def _encoder(run, **_):
    return tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(8, 8, 3)),
            tf.keras.layers.Dense(8),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "feature", ContrastiveModel.__bases__, ids=lambda x: x.__name__
)
def test_a_feature_takes_along_all_that_it_brings(feature, monkeypatch):
    dropped = feature.__name__
    others = [x for x in ContrastiveModel.__bases__ if x is not feature]
    reduced = type("Model", tuple(others), {})
    assert not issubclass(reduced, feature)
    monkeypatch.setattr(networks, "ContrastiveModel", reduced)
    monkeypatch.setattr(networks, "build_encoder", _encoder)
    # On the host: a function of TensorFlow has no config.
    run = small.run(
        loss="supcon" if dropped == "MomentumEncoder" else "moco",
        queue_size=64,
        grad_cache_chunks=2,
        online_knn_size=64,
        augment_on="host",
        workdir="w",
    )
    model, rates = train.prepare(run).build()
    missing = _MISSING.get(dropped, set())
    assert set(model.checkpointed()) == _PARTS - missing
    assert ("probe/learning_rate" in rates) == (dropped != "OnlineProbe")
    arguments = set().union(_ALWAYS, *_ARGUMENTS.values())
    arguments -= _ARGUMENTS.get(dropped, set())
    config = model.get_config()
    assert set(config) == arguments
    again = type(model).from_config(config)
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]
    # Another feature's argument is refused, not ignored.
    for name in _ARGUMENTS.get(dropped, ()):
        with pytest.raises(TypeError, match=name):
            type(model).from_config({**config, name: None})
    # The others' memory stays.
    queries, chunks = 64, 2
    images = {"MomentumEncoder": 2 * queries // chunks, "GradientCache": 64}
    assert model.images_at_once(64, 2) == images.get(dropped, queries // chunks)
    kernel = model.encoder.trainable_variables[0].numpy()
    model.run_eagerly = True  # Which is faster for one step.
    generator = np.random.default_rng(0)
    results = model.train_on_batch(
        generator.random([64, 2, 8, 8, 3], np.float32),
        generator.integers(0, 10, [64]),
        return_dict=True,
    )
    assert np.isfinite(results["loss"])
    assert ("probe_loss" in results) == (dropped != "OnlineProbe")
    assert ("online_knn_top1" in results) == (dropped != "OnlineKNN")
    assert np.any(model.encoder.trainable_variables[0].numpy() != kernel)
