"""A run's TensorBoard pages, as TensorBoard itself reads them."""

import io
import json
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import processes
import pytest
import small
from dataset_helpers import columns
from PIL import Image
from tensorboard import default, program
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tf_contrastive import checkpoints, datasets, train, views
from tf_contrastive.tensorboard import projector, scalars

pytestmark = [
    pytest.mark.usefixtures("small_encoder"),
    pytest.mark.slow,
    pytest.mark.keras,
]


_OPTIONS = {
    "split": "train[:200]",
    "validation_fraction": 0.2,
    "batch_size": 32,
    "log_every_steps": 2,
    "online_knn_size": 32,
    "histograms_every_epochs": 1,
    "projector_examples": 30,
    "profile_steps": (7, 8),
}


def _run(workdir, **changes):
    return small.run(**{**_OPTIONS, "workdir": str(workdir), **changes})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder of two runs that differ in their loss; the first one's result."""
    folder = tmp_path_factory.mktemp("runs")
    result = train.pretrain(_run(folder / "a"))
    train.pretrain(
        _run(
            folder / "b",
            loss="ntxent",
            epochs=1,
            projector_examples=20,
            profile_steps=(),
            # Statistics and weights of which each replica has its own.
            virtual_devices=2,
        )
    )
    return folder, result


class _Server:
    """TensorBoard in this process."""

    def __init__(self, folder):
        tensorboard = program.TensorBoard(plugins=default.get_plugins())
        tensorboard.configure(
            argv=["", f"--logdir={folder}", "--load_fast=false", "--port=0"]
        )
        self.url = tensorboard.launch()

    def bytes(self, path, body=None, **query):
        request = urllib.request.Request(
            f"{self.url}data/{path}?{urllib.parse.urlencode(query)}",
            data=body and json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    def get(self, path, body=None, **query):
        return json.loads(self.bytes(path, body, **query))


@pytest.fixture(scope="module")
def server(runs):
    """TensorBoard of both runs, all of them read."""
    made = _Server(runs[0])

    def read():
        try:
            tags = made.get("plugin/scalars/tags")
        except urllib.error.HTTPError:  # While another thread reads events.
            return False
        return all(
            scalars.FEATURE_RANK in tags.get(run, ())
            for run in ("a/events", "b/events")
        )

    processes.wait_for(read)
    return made


def _points(server, run, tag):
    points = server.get("plugin/scalars/scalars", run=run, tag=tag)
    return {step: value for _, step, value in points}


def test_scalars_are_in_groups(server):
    tags = set(server.get("plugin/scalars/tags")["a/events"])
    trained = {tag for tag in tags if not tag.startswith("validation/")}
    assert trained >= set(scalars.TAGS.values()) | {
        "input/images_per_second",
        "input/wait_fraction",
        "optimizer/learning_rate",
        "probe/learning_rate",
        "system/host_memory_gib",
        scalars.FEATURE_STD,
    }
    assert "validation/loss/contrastive" in tags
    speed = _points(server, "a/events", "system/steps_per_second")
    images = _points(server, "a/events", "input/images_per_second")
    for step, rate in images.items():
        assert rate == pytest.approx(32 * speed[step], rel=1e-5)


def test_views_are_below_their_images(server):
    query = {"run": "a/events", "tag": "views", "sample": 0}
    (about_grid,) = server.get("plugin/images/images", **query)
    assert about_grid["step"] == 0
    png = server.bytes(f"plugin/images/individualImage?{about_grid['query']}")
    shown = Image.open(io.BytesIO(png))
    # 8 images of 8 pixels, and 2 views.
    assert shown.size == (8 * 9 - 1, 3 * 9 - 1)
    # The first row has images of the dataset.
    pixels = np.asarray(shown.convert("RGB"))[:8]
    images = columns(datasets.source("digits", "train[:200]"))["image"]
    for place in range(8):
        original = pixels[:, place * 9 : place * 9 + 8]
        distance = np.abs(images.astype(int) - original).max(axis=(1, 2, 3))
        assert distance.min() <= 1, place


def test_histograms_are_written_after_a_step_and_each_epoch(server):
    tags = server.get("plugin/histograms/tags")["a/events"]
    assert len(tags) == 3
    for tag in tags:
        found = server.get(
            "plugin/histograms/histograms", run="a/events", tag=tag
        )
        steps = [step for _, step, _ in found]
        assert steps == [1, 5, 10], tag
        (_, _, first), *_, (_, _, last) = found
        assert first != last


def test_summaries_do_not_change_the_run(runs, tmp_path):
    options = {**small.UNWATCHED, "profile_steps": ()}
    other = train.pretrain(_run(tmp_path, **options))
    assert other.metrics == runs[1].metrics


def test_the_projector_shows_features_labels_and_images(server, runs):
    folder, _ = runs
    assert set(server.get("plugin/projector/runs")) == {"a/events", "b/events"}
    found = server.get("plugin/projector/info", run="b/events")
    (points,) = found["embeddings"]
    query = {"run": "b/events", "name": points["tensorName"]}
    tensor = np.frombuffer(
        server.bytes("plugin/projector/tensor", **query), np.float32
    ).reshape(20, 64)
    lines = server.bytes("plugin/projector/metadata", **query).decode()
    heading, *rows = (line.split("\t") for line in lines.splitlines())
    assert heading == ["label", "image"]
    # The same images, embedded by the checkpoint's encoder.
    run = checkpoints.load_run(str(folder / "b"))
    validation = train.open_data(run.config).validation
    part = validation.select(np.array([int(row) for _, row in rows]))
    batches = datasets.evaluation_batches(
        part, views.evaluation(8), batch_size=20, extra_channels=0
    )
    ((images, labels),) = batches
    expected = checkpoints.load_encoder(run)(images, training=False)
    np.testing.assert_allclose(tensor, expected, rtol=1e-3, atol=1e-4)
    assert [label for label, _ in rows] == [*map(str, labels.numpy())]
    sprite = np.asarray(
        Image.open(
            io.BytesIO(server.bytes("plugin/projector/sprite_image", **query))
        )
    )
    side = points["sprite"]["singleImageDim"]
    assert side == [8, 8] and sprite.shape == (40, 40, 3)
    last = sprite[24:32, 32:40]
    assert np.abs(last / 255.0 - images[-1]).max() < 0.01


def test_points_without_labels_and_with_whitespace(tmp_path):
    points = np.eye(5, 3, dtype=np.float32)
    pictures = np.zeros([5, 2, 2, 3], np.uint8)
    rows = np.arange(5) * 10
    projector.write_points(str(tmp_path), points, pictures, rows)
    table = tmp_path / "projector" / "metadata.tsv"
    # TensorBoard takes no heading where there is one column.
    assert table.read_text() == "0\n10\n20\n30\n40\n"
    labels = np.array([0, 1, 2, 0, 1])
    projector.write_points(
        str(tmp_path), points, pictures, rows, labels, ["a\tb", "c\nd"]
    )
    assert table.read_text().splitlines()[:4] == [
        "label\timage",
        "a b\t0",
        "c d\t10",
        "2\t20",
    ]


def test_hparams_compare_runs(server, runs):
    _, result = runs
    experiment = server.get("plugin/hparams/experiment", {"experimentName": ""})
    infos = {info["name"]: info for info in experiment["hparamInfos"]}
    differing = {name for name, info in infos.items() if info["differs"]}
    own = {"projection_batch_norm", "warmup_epochs"}  # Of the loss, the epochs.
    assert differing == {"loss", "epochs"} | own
    columns = experiment["metricInfos"]
    tags = [info["name"]["tag"] for info in columns]
    assert {"last/loss", "last/val_loss", "last/online_knn_top1"} <= set(tags)
    assert not set(tags) & set(infos)
    answer = server.get(
        "plugin/hparams/session_groups",
        {
            "experimentName": "",
            "allowedStatuses": ["STATUS_SUCCESS"],
            "colParams": [{"metric": info["name"]} for info in columns],
            "startIndex": 0,
            "sliceSize": 10,
        },
    )
    sessions = {
        group["sessions"][0]["name"].split("/")[0]: group
        for group in answer["sessionGroups"]
    }
    a, b = sessions["a"], sessions["b"]
    assert (a["hparams"]["loss"], b["hparams"]["loss"]) == ("supcon", "ntxent")
    # The default of the loss, which was not given.
    assert a["hparams"]["temperature"] == pytest.approx(0.1)
    values = {
        value["name"]["tag"]: value["value"]
        for value in a["sessions"][0]["metricValues"]
    }
    # What the run printed.
    for name in ("loss", "val_loss", "probe_accuracy"):
        assert values[f"last/{name}"] == pytest.approx(
            result.metrics[name], rel=1e-5
        )


def test_the_profile_covers_the_requested_steps(runs):
    folder, _ = runs
    (file,) = (folder / "a" / "events" / "plugins").rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    # One an execution, of Keras.
    steps = sum(
        plane.event_metadata[event.metadata_id].name == "train"
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    )
    assert 1 <= steps <= 2
    assert not (folder / "b" / "events" / "plugins").exists()
