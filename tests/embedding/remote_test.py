"""A worker's share of a job: what it checks, and a shard that is run twice."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import saved_run

from tf_contrastive import datasets, exporting
from tf_contrastive.base import errors
from tf_contrastive.embedding import job as jobs
from tf_contrastive.embedding import remote

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """An export of a run's encoder."""
    folder = tmp_path_factory.mktemp("run")
    saved_run.make(folder / "run")
    exporting.export(str(folder / "run"), str(folder / "export"))
    return f"{folder}/export/1"


def _job(images, output, **values):
    source = datasets.source(f"folder:{images}", "train")
    return jobs.Job(source, 8, str(output), shard_size=3, **values)


def test_a_worker_unlike_the_first_process_is_refused(export, images, tmp_path):
    job = _job(images, tmp_path / "out" / "d.npz")
    shards = jobs.begin(job, {})
    work = next(remote.works(job, export, shards))

    def refused(message, work=work, **changed):
        with pytest.raises(errors.UserError, match=message):
            dataclasses.replace(work, **changed).embed()
        assert not list((tmp_path / "out").glob("d-*"))

    for name in ("tf_contrastive", "tensorflow", "Pillow"):
        versions = work.versions | {name: "0.0"}
        refused(f"{name} is .* 0.0 where the job was", versions=versions)
    # Its workers export to other folders, or do not see this one.
    gone = str(tmp_path / "no" / "d.npz")
    elsewhere = dataclasses.replace(work.job, output=gone)
    refused(f"{tmp_path}/no is not", job=elsewhere)
    refused(f"{tmp_path}/no/1 is not", saved_model=f"{tmp_path}/no/1")
    # Without the folder, each image would be listed as unreadable.
    images.rename(tmp_path / "moved")
    refused("images is not on the worker")
    (tmp_path / "moved").rename(images)
    work.embed()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"d.json", "d-00000-of-00002.npz"}


def test_a_shard_that_is_there_is_kept(export, images, tmp_path):
    job = _job(images, tmp_path / "d.npz")
    first, second = remote.works(job, export, jobs.begin(job, {}))
    first.embed()
    before = (tmp_path / "d-00000-of-00002.npz").stat().st_mtime_ns
    first.embed()
    # What an attempt leaves that ends before it writes its shard.
    Path(second.shard.bad_path).write_text('{"missing": ["an image"]}')
    second.embed()
    assert (tmp_path / "d-00000-of-00002.npz").stat().st_mtime_ns == before
    assert np.load(second.shard.path)["indices"].tolist() == [3, 4, 5]
    assert jobs.finish(job) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback:\n  File x\ntf_c.errors.UserError: a: b\n", "a: b"),
        ("UserError: a [while running 'Embed']", "a [while running 'Embed']"),
        ("Traceback:\nValueError: no UserError: here", None),
    ],
)
def test_the_error_of_a_worker_is_found_in_what_quotes_it(text, expected):
    error = remote.user_error(text)
    assert (error and str(error)) == expected
