"""launch/serve: what it runs by Docker, and by an installed server."""

import os
import shlex

import pytest

_BATCHING = "2/assets.extra/batching_parameters.txt"


@pytest.fixture
def base(project):
    """A folder of versions 1 and 2 of an export."""
    folder = project.folder / "with space"
    for version in "12":
        (folder / version).mkdir(parents=True)
        (folder / version / "saved_model.pb").touch()
    return str(folder)


def _serve(project, *words, status=0):
    """The calls of launch/serve besides `docker info`, and what it says."""
    done = project.run("launch/serve", *words, status=status)
    calls = [call for call in project.calls() if call != ["docker", "info"]]
    return calls, done


def test_docker_mounts_the_versions(project, base):
    words = ("--rest_port=9000", "--batching", "--memory=2g", "--cpus=1.5")
    (called,), done = _serve(project, *words, base)
    expected = (
        "docker run --rm --init --publish=127.0.0.1:8500:8500"
        " --publish=127.0.0.1:9000:8501 --memory=2g --cpus=1.5"
        f" --user={os.getuid()}:{os.getgid()} --cap-drop=ALL"
        " --security-opt=no-new-privileges"
        " --mount=type=bind,source=BASE,target=/models/encoder,readonly"
        " tensorflow/serving:2.15.1 --model_name=encoder"
        " --model_base_path=/models/encoder --enable_batching"
        f" --batching_parameters_file=/models/encoder/{_BATCHING}"
    )
    assert called == [word.replace("BASE", base) for word in expected.split()]
    assert "http://127.0.0.1:9000/v1/models/encoder" in done.stderr
    (called,), _ = _serve(project, "--host=[::]", base)
    assert "--publish=[::]:8501:8501" in called
    nothing, done = _serve(project, "--dry_run", "--host=[::]", base)
    assert not nothing and shlex.split(done.stdout) == called
    (called,), _ = _serve(project, "--image=other", "gs://bucket/export")
    path = "--model_base_path=gs://bucket/export"
    assert called[-3:] == ["other", "--model_name=encoder", path]


def test_folders_that_cannot_be_served_are_named(project):
    for words, status, told in (
        (["nowhere"], 1, "no export in "),
        (["--batching", "gs://b"], 2, "--batching needs a local folder"),
    ):
        calls, done = _serve(project, *words, status=status)
        assert not calls and told in done.stderr
        assert done.stderr.count("\n") == 1


def test_an_installed_server_is_used_where_docker_is_not(project, base):
    """Docker's client alone is not enough: its daemon may not run."""
    project.fake(project.bin / "docker", "sys.exit(1)")
    calls, done = _serve(project, base, status=1)
    assert not calls
    assert "tf_contrastive serve --saved_model=" in done.stderr
    assert "http://" not in done.stderr and done.stderr.count("\n") == 1
    project.fake(project.bin / "tensorflow_model_server")
    host = "--host=0.0.0.0"
    for words, named in (([], host), ([host, "--memory=2g"], "--memory needs")):
        calls, done = _serve(project, *words, base, status=2)
        assert not calls and named in done.stderr
    (called,), done = _serve(project, host, "--batching", base)
    expected = (
        "tensorflow_model_server --port=8500 --rest_api_port=8501"
        " --model_name=encoder --model_base_path=BASE --enable_batching"
        f" --batching_parameters_file=BASE/{_BATCHING}"
    )
    assert called == [word.replace("BASE", base) for word in expected.split()]
    assert "http://0.0.0.0:8501/v1/models/encoder" in done.stderr
