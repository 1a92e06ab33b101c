"""The reference of the package, built from its docstrings by launch/docs."""

import html
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib import parse

import pytest

import tf_contrastive
from tf_contrastive import losses

_ROOT = Path(__file__).resolve().parents[1]

_LOSSES = {loss.__name__: loss for loss in losses.LOSSES.values()}
# What the design promises, by module.
_API = {
    "": ["load"],
    "losses": [
        "build",
        "ContrastiveLoss.__call__",
        "ContrastiveLoss.per_anchor",
        *_LOSSES,
    ],
    "optimizers": ["LARS"],
    "schedules": ["build"],
    "views": ["build", "Policy.__call__", "Policy.batch"],
    "encoders": ["build"],
    "heads": ["build", "LinearProbe"],
    "model": [
        "ContrastiveModel",
        "ContrastiveModel.compile",
        "ContrastiveModel.call",
    ],
    "datasets": ["load", "Info"],
    "evaluation": [
        "bootstrap_difference",
        "eleven_point_average_precision",
        "expected_calibration_error",
        "kl_lower_bound",
        "knn",
        "linear_probe",
        "logistic_regression",
        "mean_corruption_error",
        "permutation_test",
        "prototype",
        "separation_margin",
    ],
    "exporting": ["export"],
}
_NAMES = [(module, name) for module, names in _API.items() for name in names]


def _project(folder):
    """What launch/docs needs: this interpreter in place of .venv's."""
    (folder / "launch").mkdir(parents=True)
    for name in ("docs", "reference.py", "commands.sh"):
        shutil.copy(_ROOT / "launch" / name, folder / "launch")
    install = folder / "launch" / "install"
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    install.write_text("#!/bin/sh\n")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for file in (install, python):
        file.chmod(0o755)


def _docs(folder, *words):
    path = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
    return subprocess.run(
        [folder / "project" / "launch" / "docs", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Page, such as "tf_contrastive/losses.html" -> its text."""
    folder = tmp_path_factory.mktemp("docs")
    _project(folder / "project")
    # Of an earlier reference, whose module is gone.
    stale = folder / "pages" / "tf_contrastive" / "gone.html"
    stale.parent.mkdir(parents=True)
    for file in (stale, folder / "pages" / "tf_contrastive.html"):
        file.touch()
    done = _docs(folder, "--output=pages")
    assert done.returncode == 0, done.stderr
    assert "docs:" not in done.stderr
    written = folder / "pages" / "tf_contrastive.html"
    assert done.stdout == f"written: {written}\n"
    return {
        str(path.relative_to(folder / "pages")): path.read_text("utf-8")
        for path in (folder / "pages").rglob("*.html")
    }


def _found(module, name):
    """What a name of `_API` stands for."""
    if module == "losses" and name in _LOSSES:
        return _LOSSES[name]
    found = tf_contrastive
    if module:
        found = importlib.import_module(f"tf_contrastive.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _page(module):
    name = f"tf_contrastive.{module}" if module else "tf_contrastive"
    return f"{name.replace('.', '/')}.html"


def _plain(text):
    """A docstring or a part of a page, without marks and line breaks."""
    text = html.unescape(re.sub(r"<[^>]+>", "", text))
    return " ".join(re.sub(r"[`*]", "", text).split())


def _shown(page, name):
    """The docstring that a page shows of a name."""
    start = page.index(f'id="{name}"')
    start = page.index('class="docstring">', start)
    return _plain(page[start : page.index("</div>", start)].partition(">")[2])


@pytest.mark.parametrize(("module", "name"), _NAMES)
def test_every_public_name_is_there_with_its_docstring(pages, module, name):
    told = inspect.getdoc(_found(module, name))
    shown = _shown(pages[_page(module)], name)
    assert shown.startswith(_plain(told.split("\n\n")[0]))
    # Arguments are a list, a line for each.
    for section, title in (("Args", "Arguments"), ("Returns", "Returns")):
        assert (f"{section}:\n" in told) == (f"{title}:" in shown), section
    for argument in re.findall(r"^  (\w+): ", told, re.MULTILINE):
        assert f"{argument}: " in shown


def test_equations_of_losses_are_shown_as_they_stand(pages):
    page = pages["tf_contrastive/losses.html"]
    assert "exp(z_i . z_p / t) / sum_{a != i} exp(z_i . z_a / t))" in (
        html.unescape(page)
    )


def test_whatever_a_module_exports_is_there(pages):
    for module in dir(tf_contrastive):
        if module in ("load", "__version__"):
            continue
        page = pages[_page(module)]
        found = importlib.import_module(f"tf_contrastive.{module}")
        for name in getattr(found, "__all__", ()):
            inner = _page(f"{module}.{name}")
            assert f'id="{name}"' in page or inner in pages, (module, name)


def test_pages_of_modules_that_are_gone_are_gone(pages):
    assert "tf_contrastive/gone.html" not in pages
    assert "tf_contrastive/losses.html" in pages


def test_links_lead_somewhere(pages):
    for name, page in pages.items():
        page = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        for link in re.findall(r'href="([^"]+)"', page):
            file, _, anchor = html.unescape(link).partition("#")
            if parse.urlsplit(file).scheme:
                continue
            there = name
            if file:
                there = os.path.normpath(Path(name).parent / file)
            assert there in pages, (name, link)
            # Private base classes, and what they get from Keras, have no place.
            if re.fullmatch(r"[A-Za-z]\w*", anchor):
                assert f'id="{anchor}"' in pages[there], (name, link)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--out=x"], "unknown argument --out=x"),
        (["x"], "unknown argument x"),
        (["--output="], "unknown argument --output="),
    ],
)
def test_a_misuse_gets_one_line(tmp_path, words, told):
    _project(tmp_path / "project")
    done = _docs(tmp_path, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert told in line and "launch/docs [--output=FOLDER]" in line


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    _project(tmp_path / "project")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "index.html").write_text("years of work")
    done = _docs(tmp_path, "--output=thesis")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "thesis holds something else: give a folder that is new" in line
    assert (tmp_path / "thesis" / "index.html").read_text() == "years of work"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
