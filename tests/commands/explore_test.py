"""The page of `explore` and its JSON."""

import json
import re

import browsers
import image_helpers
import numpy as np
import pytest
import saved_run
import small
from PIL import Image

from tf_contrastive import datasets
from tf_contrastive.config import fields
from tf_contrastive.config.explore import Exploration
from tf_contrastive.evaluation.explore import images, report
from tf_contrastive.evaluation.explore import page as pages

# Names that would run, or end the data, if they were taken for HTML.
_EVIL = "<img src=x onerror=document.title=1>.png"
_FOLDERS = ("<!--<script>", "b & c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Splits of photographs in two classes, a run, and queries."""
    root = tmp_path_factory.mktemp("explore")
    tiles = image_helpers.tiles()
    for i, tile in enumerate(tiles):
        split = "train" if i < 26 else "test"
        place = root / "photos" / split / _FOLDERS[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(tile).save(place / f"{i}.png")
    train, test = (root / "photos" / x / _FOLDERS[0] for x in ("train", "test"))
    (train / "4.png").rename(train / _EVIL)
    # An exact copy of other bytes, across splits; and a near one, mirrored and
    # in the other class.
    Image.fromarray(tiles[0]).save(test / "copy.bmp")
    Image.fromarray(tiles[1][:, ::-1]).save(train / "mirrored.jpg")
    queries = root / "queries" / "deep"
    queries.mkdir(parents=True)
    Image.fromarray(tiles[2]).save(queries / "query.png")
    (queries / "broken.png").write_bytes(b"\x89PNG")
    (queries / "notes.txt").write_text("no image")
    # What folder: leaves out, and a folder within itself.
    for hidden in ("@eaDir", ".thumbnails"):
        (queries / hidden).mkdir()
        Image.fromarray(tiles[3]).save(queries / hidden / "thumbnail.png")
    (queries / "loop").symlink_to(queries.parent)
    saved_run.make(root / "run", branches=True)
    return root


@pytest.fixture(scope="module")
def explored(folder):
    flags = (
        f"--dataset=folder:{folder / 'photos'}",
        f"--workdir={folder / 'run'}",
        f"--query={folder / 'queries'}",
        f"--output={folder / 'out'}",
    )
    assert small.command("explore", *flags) == 0
    found = json.loads((folder / "out" / "explore.json").read_text())
    return folder / "out" / "explore.html", found


def _names(group):
    return [image["name"].rpartition("/")[2] for image in group["images"]]


@pytest.mark.slow
def test_copies_are_found_across_splits_and_classes(explored):
    _, found = explored
    assert found["images"] == len(image_helpers.tiles()) + 2
    (exact,) = found["exact_duplicates"]
    assert _names(exact) == ["0.png", "copy.bmp"]
    assert exact["across_splits"] and not exact["classes_differ"]
    (near,) = found["near_duplicates"]
    assert {*_names(near)} == {"1.png", "mirrored.jpg"}
    assert near["classes_differ"] and not near["across_splits"]
    assert near["correlation"] > 0.9


@pytest.mark.slow
def test_every_image_has_neighbors_and_the_query_is_found(explored):
    _, found = explored
    every = found["neighbors"]
    assert len(every) == found["images"]
    for place, image in enumerate(every):
        assert image["id"] == place
        assert len({*image["neighbors"]} - {place}) == 10
        assert image["cosines"] == sorted(image["cosines"], reverse=True)
    (query,) = found["queries"]
    assert query["name"].endswith("query.png")
    first = query["neighbors"][0]
    assert first["name"].endswith("/2.png")
    assert first["cosine"] == pytest.approx(1, abs=1e-5)
    assert first["class"] == every[first["id"]]["class"] == _FOLDERS[0]


# ---- Embeddings of random images ---------------------------------------------


def _of_arrays(h, labels=None, names=None, **options):
    """The findings, and the page's text."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, [len(h), 8, 8, 3], np.uint8)
    source = datasets.from_arrays(pixels, labels, names, unlabelled=True)
    options = fields.replace(Exploration(), map="pca", **options)
    split = images.Split(source, h.astype(np.float32))
    found = report.explore("arrays", [split], options)
    return found, pages.write(found, [split], options.listed)


def _normal(rows):
    return np.random.default_rng(0).normal(size=[rows, 4])


def test_the_json_has_all_and_the_page_what_is_listed():
    h = _normal(60)
    found, text = _of_arrays(
        h, np.arange(60) % 3, listed=5, map_images=7, neighbors=3
    )
    cosines = (unit := h / np.linalg.norm(h, axis=1, keepdims=True)) @ unit.T
    nearest = np.argsort(-cosines - 3 * np.eye(60))[:, 1:4]
    assert [x["id"] for x in found["outliers"]] == np.argsort(
        np.take_along_axis(cosines, nearest, 1).mean(1)
    ).tolist()
    assert [x["neighbors"] for x in found["neighbors"]] == nearest.tolist()
    assert len(found["suspects"]) > 5
    assert len(found["map"]["ids"]) == len(found["map"]["places"]) == 7
    low, high = (f(found["map"]["places"], axis=0) for f in (np.min, np.max))
    np.testing.assert_allclose(low, -high, atol=1e-4)
    assert max(high) == pytest.approx(0.5, abs=1e-4)
    page = json.loads(text.partition('id="data">')[2].partition("</")[0])
    assert [len(page[x]) for x in ("outliers", "suspects")] == [5, 5]
    assert page["totals"]["outliers"] == 60
    assert 7 < len(page["neighbors"]) < 60


def test_without_labels_there_are_no_suspects():
    found, _ = _of_arrays(_normal(30))
    assert "suspects" not in found
    assert found["neighbors"][0]["class"] is None


def test_a_label_that_no_neighbor_has_is_the_first_suspect():
    evil = "</script><script>document.title=2</script>"
    random = np.random.default_rng(0)
    h = np.repeat(np.eye(3), 20, axis=0) + 0.1 * random.normal(size=[60, 3])
    labels = np.repeat([0, 1, 2], 20)
    labels[17] = 2
    found, text = _of_arrays(h, labels, ["a", "b", evil])
    (suspect,) = found["suspects"]
    assert (suspect["id"], suspect["class"]) == (17, evil)
    assert (suspect["vote"], suspect["missing"]) == ("a", 1)
    assert text.count("</script>") == 2


# ---- Errors ------------------------------------------------------------------


def test_invalid_input_is_refused_before_the_work(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    photographs = f"--dataset=folder:{folder / 'photos'}"
    run = f"--workdir={folder / 'run'}"
    output = f"--output={tmp_path / 'out'}"
    cases = {
        (): "--workdir",
        ("--saved_model=x",): "--dataset",
        (run, photographs, f"--query={tmp_path}/absent"): "absent",
        (run, photographs, f"--query={tmp_path}/empty"): "empty",
        (run, photographs, f"--query={tmp_path}/broken.png"): "broken.png",
        (run, photographs, f"--query={tmp_path}/file"): "file",
        (run, "--split=train,train[:9]"): "--split=train[:9]",
        (run, "--split=a,b["): "--split",
        (run, "--split=trian"): "trian",
        (run, f"--dataset=folder:{tmp_path}/empty"): "empty",
        (run, "--output=" + str(tmp_path / "file" / "x")): "--output",
    }
    for flags, text in cases.items():
        named = any(flag.startswith("--output") for flag in flags)
        words = flags if named else (*flags, output)
        assert small.command("explore", *words) == 2
        lines = capsys.readouterr().err.splitlines()
        (message,) = [x for x in lines if x.startswith("tf_contrastive: ")]
        assert text in message, (flags, message)
    assert not (tmp_path / "out" / "explore.html").exists()


# ---- The page ----------------------------------------------------------------


@pytest.fixture(scope="module")
def page(explored, tmp_path_factory):
    """(driver, address of the page)."""
    with browsers.chromium(tmp_path_factory.mktemp("page")) as driver:
        yield driver, f"file://{explored[0]}"


def _open(page, part, width=1300, dark=False):
    driver, address = page
    size = {"width": width, "height": 800}
    size |= {"deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": ("light", "dark")[dark]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get("about:blank")
    driver.get(f"{address}#{part}")
    return driver


@pytest.mark.parametrize(
    ("width", "dark", "parts"),
    [
        (1300, False, ("map", "exact", "near", "outliers", "queries")),
        (420, True, ("map", "images")),
    ],
)
def test_every_part_of_the_page_fits_and_logs_no_error(
    page, width, dark, parts
):
    for part in parts:
        driver = _open(page, f"{part}/3", width, dark)
        wide, back, images, tabs, below = driver.execute_async_script(
            """
            const done = arguments[0];
            const images = [...document.querySelectorAll("img")];
            images.forEach((image) => { image.loading = "eager"; });
            Promise.all(images.map((image) => image.decode())).then(() => done([
              document.documentElement.scrollWidth,
              getComputedStyle(document.body).backgroundColor,
              images.length,
              [...document.querySelectorAll("nav a")].map(
                (tab) => tab.getBoundingClientRect().right),
              byId("detail").getBoundingClientRect().top
                - byId("tabs").getBoundingClientRect().bottom]));
            """
        )
        assert wide <= width
        assert max(tabs) <= width
        # On a narrow page the chosen image does not cover the tabs.
        assert below > 0 or width > 700
        assert (sum(map(int, re.findall(r"\d+", back))) < 380) == dark
        assert images > 10
        assert not driver.get_log("browser")


def test_names_of_files_and_classes_are_text(page, explored):
    driver = _open(page, "images")
    assert driver.title.startswith("folder:")
    text = driver.execute_script("return byId('panel').textContent")
    for name in (_EVIL, *_FOLDERS):
        assert name in text
    # Even if a name became HTML, the page would not run it.
    driver.execute_script(
        "document.body.insertAdjacentHTML('beforeend', arguments[0])", _EVIL
    )
    driver.execute_async_script("setTimeout(arguments[0], 300)")
    assert driver.title.startswith("folder:")
    log = driver.get_log("browser")
    assert any("Content Security Policy" in line["message"] for line in log)
    html = explored[0].read_text()
    assert "http://" not in html and "https://" not in html


_CLICK = """
    document.querySelector(arguments[0]).click();
    const cards = () => [...document.querySelectorAll("#detail .card")];
    const done = () => arguments[1]([chosen, cards().map((x) => x.title)]);
    setTimeout(done, 300);
"""


def test_an_image_shows_its_neighbors_which_show_theirs(page, explored):
    every = explored[1]["neighbors"]
    driver = _open(page, "images")
    for selector in ("#panel .card:nth-child(5)", "#detail .card"):
        chosen, titles = driver.execute_async_script(_CLICK, selector)
        assert titles == [every[i]["name"] for i in every[chosen]["neighbors"]]
    driver.execute_async_script(_CLICK, "#detail .close")
    assert driver.execute_script("return byId('detail').hidden")


_MOUSE = """
    const [left] = points.toSorted((a, b) => a.x - b.x);
    const [x, y] = toScreen(left), box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new MouseEvent("click", {
      clientX: box.left + x + 3, clientY: box.top + y - 2 }));
    setTimeout(() => arguments[0]([left.image.id, chosen]), 200);
"""


def test_the_map_shows_and_chooses_images(page):
    driver = _open(page, "map")
    assert driver.execute_script(
        "return points.every((point) => toScreen(point).every("
        "(x, k) => x > 0 && x < [canvas.clientWidth, canvas.clientHeight][k]))"
    )
    expected, chosen = driver.execute_async_script(_MOUSE)
    assert chosen == expected >= 0
