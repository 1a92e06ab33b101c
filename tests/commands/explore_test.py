"""The page of `explore` and its JSON, from a run and from files."""

import base64
import io
import json
import shutil
import sys
import time

import browsers
import numpy as np
import pytest
import saved_run
from image_helpers import photos
from PIL import Image

from tf_contrastive import __main__
from tf_contrastive.base import errors
from tf_contrastive.commands import explore as command
from tf_contrastive.config import fields

# Names that would run, or end the data, if they were taken for HTML.
_EVIL = "<img src=x onerror=document.title=1>.png"
_FOLDERS = ("<!--<script>", "b & c")
_SIDE = 71


def _tiles():
    rows = [
        np.split(row, 6, axis=1)
        for photo in photos()
        for row in np.split(photo[1:, 1:], 6)
    ]
    tiles = [tile for row in rows for tile in row]
    # Those of the sky alone have no details.
    return [x for x in tiles if np.diff(x / 1.0, axis=0).std() > 10]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Splits of photographs in two classes, a run, and queries."""
    root = tmp_path_factory.mktemp("explore")
    tiles = _tiles()
    for i, tile in enumerate(tiles):
        split = "train" if i < 26 else "test"
        place = root / "photos" / split / _FOLDERS[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(tile).save(place / f"{i}.png")
    photographs = root / "photos"
    (photographs / "train" / _FOLDERS[0] / "4.png").rename(
        photographs / "train" / _FOLDERS[0] / _EVIL
    )
    # An exact copy of other bytes, across splits; and a near one, mirrored and
    # in the other class.
    Image.fromarray(tiles[0]).save(
        photographs / "test" / _FOLDERS[0] / "copy.bmp"
    )
    Image.fromarray(tiles[1][:, ::-1]).save(
        photographs / "train" / _FOLDERS[0] / "mirrored.jpg"
    )
    queries = root / "queries" / "deep"
    queries.mkdir(parents=True)
    Image.fromarray(tiles[2]).save(queries / "query.png")
    (queries / "broken.png").write_bytes(b"\x89PNG")
    (queries / "notes.txt").write_text("no image")
    saved_run.make(root / "run", branches=True)
    return root


def _explore(root, output, **options):
    given = {"dataset": f"folder:{root / 'photos'}", "workdir": root / "run"}
    flags = [
        f"--{name}={value}"
        for name, value in {**given, "output": output, **options}.items()
    ]
    return __main__._run(["explore", *flags])


@pytest.fixture(scope="module")
def explored(folder):
    assert _explore(folder, folder / "out", query=folder / "queries") == 0
    text = (folder / "out" / "explore.json").read_text()
    return folder / "out" / "explore.html", json.loads(text)


def _names(group):
    return [image["name"].rpartition("/")[2] for image in group["images"]]


@pytest.mark.slow
def test_copies_are_found_across_splits_and_classes(explored):
    _, found = explored
    assert found["images"] == len(_tiles()) + 2
    (exact,) = found["exact_duplicates"]
    assert _names(exact) == ["0.png", "copy.bmp"]
    assert exact["across_splits"] and not exact["classes_differ"]
    (near,) = found["near_duplicates"]
    assert {*_names(near)} == {"1.png", "mirrored.jpg"}
    assert near["classes_differ"] and not near["across_splits"]
    assert near["correlation"] > 0.9


def test_every_image_has_neighbors_and_the_query_is_found(explored):
    _, found = explored
    assert len(found["neighbors"]) == found["images"]
    for image in found["neighbors"]:
        cosines = [near["cosine"] for near in image["neighbors"]]
        assert len(cosines) == 10
        assert cosines == sorted(cosines, reverse=True)
    (query,) = found["queries"]
    assert query["name"].endswith("query.png")
    first = query["neighbors"][0]
    assert first["name"].endswith("/2.png")
    assert first["cosine"] == pytest.approx(1, abs=1e-5)
    assert first["class"] == _FOLDERS[0]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["npz", "tfrecord", "parquet"])
def test_files_of_embed_give_the_same_neighbors(format, explored, folder):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    files = []
    for split in ("train", "test"):
        files.append(str(folder / f"{split}.{format}"))
        flags = (
            f"--workdir={folder / 'run'}",
            f"--input=folder:{folder / 'photos'}",
            f"--split={split}",
            f"--output={files[-1]}",
        )
        assert __main__._run(["embed", *flags]) == 0
    output = folder / format
    flags = (
        f"--embeddings={','.join(files)}",
        "--split=train,test",
        f"--output={output}",
    )
    assert __main__._run(["explore", *flags]) == 0
    found = json.loads((output / "explore.json").read_text())
    _, expected = explored
    for name in ("exact_duplicates", "near_duplicates"):
        assert [*map(_names, found[name])] == [*map(_names, expected[name])]
    for ours, theirs in zip(
        found["neighbors"], expected["neighbors"], strict=True
    ):
        assert ours["name"] == theirs["name"]
        for a, b in zip(ours["neighbors"], theirs["neighbors"], strict=True):
            assert a["cosine"] == pytest.approx(b["cosine"], abs=1e-5)


def test_embeddings_alone_need_no_images_and_no_labels(tmp_path, capsys):
    h = np.random.default_rng(0).normal(size=[30, 4]).astype("f")
    h[7] = 3 * h[3]
    h[9] = h[8]
    np.save(tmp_path / "own.npy", h)
    output = tmp_path / "out"
    flags = (f"--embeddings={tmp_path / 'own.npy'}", f"--output={output}")
    assert __main__._run(["explore", *flags]) == 0
    assert "embeddings alone" in capsys.readouterr().out
    found = json.loads((output / "explore.json").read_text())
    indices = [
        [image["index"] for image in group["images"]]
        for name in ("exact_duplicates", "near_duplicates")
        for group in found[name]
    ]
    assert indices == [[8, 9], [3, 7]]
    assert "suspects" not in found
    assert found["neighbors"][0]["class"] is None


def test_a_label_that_no_neighbor_has_is_the_first_suspect(tmp_path):
    random = np.random.default_rng(0)
    evil = "</script><script>document.title=2</script>"
    h = np.repeat(np.eye(3), 20, axis=0) + 0.1 * random.normal(size=[60, 3])
    labels = np.repeat([0, 1, 2], 20)
    labels[17] = 2
    path = tmp_path / "own.npz"
    np.savez(path, embeddings=h, labels=labels, label_names=["a", "b", evil])
    flags = (f"--embeddings={path}", f"--output={tmp_path / 'out'}")
    assert __main__._run(["explore", *flags]) == 0
    found = json.loads((tmp_path / "out" / "explore.json").read_text())
    (suspect,) = found["suspects"]
    assert (suspect["index"], suspect["class"]) == (17, evil)
    assert (suspect["vote"], suspect["missing"]) == ("a", 1)
    html = (tmp_path / "out" / "explore.html").read_text()
    assert html.count("</script>") == 2


# ---- Errors ------------------------------------------------------------------


def _refused(capsys, *flags):
    assert __main__._run(["explore", *flags]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("tf_contrastive: ")
    return message


def test_invalid_input_is_refused_before_the_work(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    shutil.copy(folder / "queries/deep/broken.png", tmp_path / "broken.png")
    np.save(tmp_path / "one.npy", np.ones([1, 2]))
    np.save(tmp_path / "flat.npy", np.ones([4]))
    np.save(tmp_path / "other.npy", np.eye(5))
    np.save(tmp_path / "more.npy", np.ones([20, 8]))
    photographs = f"--dataset=folder:{folder / 'photos'}"
    run = f"--workdir={folder / 'run'}"
    output = f"--output={tmp_path / 'out'}"
    cases = {
        (): "--workdir",
        (run, "--embeddings=x.npz"): "--embeddings",
        ("--saved_model=x",): "--dataset",
        ("--embeddings=x.npz", "--query=x.png"): "--query=x.png",
        ("--embeddings=x.npz", "--dataset=digits"): "--split",
        (f"--embeddings={tmp_path}/absent.npz",): "absent.npz",
        (f"--embeddings={tmp_path}/file",): "file",
        (f"--embeddings={tmp_path}/one.npy",): "at least two",
        (f"--embeddings={tmp_path}/flat.npy",): "[4]",
        (f"--embeddings={tmp_path}/one.npy,{tmp_path}/other.npy",): "5",
        (
            f"--embeddings={tmp_path}/more.npy",
            "--dataset=digits",
            "--split=train[:10]",
        ): "--dataset",
        (run, photographs, f"--query={tmp_path}/absent"): "absent",
        (run, photographs, f"--query={tmp_path}/empty"): "empty",
        (run, photographs, f"--query={tmp_path}/broken.png"): "broken.png",
        (run, photographs, f"--query={tmp_path}/file"): "file",
        (run, "--split=train,train[:9]"): "--split=train[:9]",
        (run, "--split=trian"): "trian",
        (run, f"--dataset=folder:{tmp_path}/empty"): "empty",
        (run, "--output=" + str(tmp_path / "file" / "x")): "--output",
    }
    for flags, text in cases.items():
        named = any(flag.startswith("--output") for flag in flags)
        message = _refused(capsys, *flags, *([] if named else [output]))
        assert text in message, (flags, message)
    assert not (tmp_path / "out" / "explore.html").exists()


def test_neighbors_of_more_images_than_pairs_can_be_compared_need_faiss(
    monkeypatch, tmp_path, capsys
):
    from tf_contrastive.evaluation.explore import report

    monkeypatch.setattr(report, "MAX_EXACT", 9)
    for count in (9, 10):
        np.save(tmp_path / f"{count}.npy", np.eye(count))
    output = f"--output={tmp_path / 'out'}"

    def explored(count):
        flags = [f"--embeddings={tmp_path}/{count}.npy", output]
        assert __main__._run(["explore", *flags]) == 0
        return json.loads((tmp_path / "out/explore.json").read_text())

    assert explored(9)["neighbors_by"] == "all pairs"
    assert explored(10)["neighbors_by"] == "faiss"
    monkeypatch.setitem(sys.modules, "faiss", None)
    message = _refused(capsys, f"--embeddings={tmp_path}/10.npy", output)
    assert "faiss" in message and "--split" in message


def test_options_are_checked():
    options = fields.replace(command.Explore(), workdir="x", split="a,b[")
    with pytest.raises(errors.UserError, match="split"):
        options.validate()


# ---- The page ----------------------------------------------------------------


@pytest.fixture(scope="module")
def page(explored, tmp_path_factory):
    """(driver, address of the page)."""
    with browsers.chromium(tmp_path_factory.mktemp("page")) as driver:
        yield driver, f"file://{explored[0]}"


def _open(page, part, width=1300, dark=False):
    driver, address = page
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {
            "width": width,
            "height": 800,
            "deviceScaleFactor": 1,
            "mobile": False,
        },
    )
    scheme = {"name": "prefers-color-scheme", "value": ("light", "dark")[dark]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get("about:blank")
    driver.get(f"{address}#{part}")
    return driver


def _click(driver, selector):
    from selenium.webdriver.common.by import By

    driver.find_element(By.CSS_SELECTOR, selector).click()


_PARTS = ("map", "exact", "near", "outliers", "classes", "queries", "images")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1300, 400])
def test_every_part_of_the_page_fits_and_logs_no_error(page, width, dark):
    for part in _PARTS:
        driver = _open(page, f"{part}/3", width, dark)
        wide, text, back, images = driver.execute_async_script(
            """
            const done = arguments[0];
            const images = [...document.querySelectorAll("img")];
            images.forEach((image) => { image.loading = "eager"; });
            Promise.all(images.map((image) => image.decode())).then(() => done([
              document.documentElement.scrollWidth,
              getComputedStyle(document.body).color,
              getComputedStyle(document.body).backgroundColor,
              images.length]));
            """
        )
        assert wide <= width
        light = [sum(map(int, x[4:-1].split(","))) > 380 for x in (text, back)]
        assert light == [dark, not dark]
        assert images > 10
        assert not driver.get_log("browser")


def test_names_of_files_and_classes_are_text(page, explored):
    driver = _open(page, "images")
    assert driver.title.startswith("folder:")
    text = driver.execute_script("return byId('panel').textContent")
    for name in (_EVIL, *_FOLDERS):
        assert name in text
    assert (
        driver.execute_script(
            "return document.querySelectorAll('img[onerror]').length"
        )
        == 0
    )
    # Even if a name became HTML, the page would not run it.
    driver.execute_script(
        "document.body.insertAdjacentHTML('beforeend', arguments[0])", _EVIL
    )
    driver.execute_async_script("setTimeout(arguments[0], 300)")
    assert driver.title.startswith("folder:")
    assert any(
        "Content Security Policy" in line["message"]
        for line in driver.get_log("browser")
    )
    html = explored[0].read_text()
    assert "http://" not in html and "https://" not in html


def _wait_for(driver, condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not driver.execute_script(f"return {condition}"):
        assert time.monotonic() < until, condition
        time.sleep(0.05)


def test_an_image_shows_its_neighbors_which_show_theirs(page, explored):
    _, found = explored
    driver = _open(page, "images")
    expected = {
        image["name"]: [near["name"] for near in image["neighbors"]]
        for image in found["neighbors"]
    }
    _click(driver, "#panel .card:nth-child(5)")
    places = []
    for _ in range(2):
        titles = driver.execute_async_script(
            """
            setTimeout(() => arguments[0]([
              location.hash,
              [...document.querySelectorAll("#neighbors .card")]
                .map((card) => card.title)]), 200);
            """
        )
        place, shown = titles
        places.append(place)
        name = driver.execute_script(
            "return data.names[Number(arguments[0].split('/')[1])]", place
        )
        assert shown == expected[name]
        _click(driver, "#neighbors .card")
    first = places[0]
    driver.back()
    driver.back()
    # The browser goes back when it has time.
    _wait_for(driver, f"location.hash === '{first}'")
    _click(driver, "#detail .close")
    _wait_for(driver, "byId('detail').hidden")


def test_the_map_is_used_by_mouse_and_by_keys(page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver = _open(page, "map")
    canvas = driver.find_element(By.TAG_NAME, "canvas")
    x, y, width, height = driver.execute_script(
        "const b = canvas.getBoundingClientRect();"
        "const left = (i) => toScreen(i)[0];"
        "const first = points.reduce((a, i) => (left(i) < left(a) ? i : a));"
        "return [...toScreen(first), b.width, b.height]"
    )
    at = round(x - width / 2), round(y - height / 2)
    mouse = ActionChains(driver)
    mouse.move_to_element_with_offset(canvas, *at).perform()
    chosen = driver.execute_script("return hovered")
    assert chosen >= 0
    tip = driver.find_element(By.ID, "tip")
    assert tip.is_displayed()
    assert tip.find_elements(By.TAG_NAME, "img")
    mouse.click().perform()
    driver.execute_async_script("setTimeout(arguments[0], 200)")
    assert driver.execute_script("return chosen") == chosen
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    driver.execute_async_script("setTimeout(arguments[0], 200)")
    assert driver.execute_script("return chosen") not in (-1, chosen)
    canvas.send_keys("++")
    assert driver.execute_script("return view.scale") == pytest.approx(2.25)
    canvas.send_keys(Keys.ESCAPE)
    driver.execute_async_script("setTimeout(arguments[0], 200)")
    assert driver.execute_script("return chosen") == -1


@pytest.mark.slow
def test_ten_thousand_images_stay_responsive(page, tmp_path):
    random = np.random.default_rng(0)
    centers = random.normal(size=[10, 16])
    labels = random.integers(0, 10, 10_000)
    h = centers[labels] + 0.5 * random.normal(size=[10_000, 16])
    np.savez(tmp_path / "h.npz", embeddings=h.astype("f"), labels=labels)
    flags = (
        f"--embeddings={tmp_path / 'h.npz'}",
        f"--output={tmp_path}",
        "--map=pca",
        "--map_images=10000",
    )
    assert __main__._run(["explore", *flags]) == 0
    driver, _ = page
    _open((driver, f"file://{tmp_path / 'explore.html'}"), "map")
    cards = driver.execute_script(
        """
        drawNow(); nearest(300, 300, 12); step(1, 0); choose(77);
        tab = "images"; showTab();
        return document.querySelectorAll("#panel .card").length;
        """
    )
    assert driver.execute_script("return points.length") == 10_000
    # The lists are made as they are seen.
    assert 0 < cards < 500


@pytest.mark.slow
def test_sizes_are_stated(explored, folder, capsys):
    assert _explore(folder, folder / "again", map="pca", map_images=5) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    path = folder / "again" / "explore.html"
    assert last.startswith(f"{path}: ")
    assert last.endswith(f"{path.stat().st_size / 1e6:.1f} MB")
    found = json.loads((folder / "again" / "explore.json").read_text())
    assert len(found["neighbors"]) == 5
    # Their neighbours have thumbnails, too: each is an image that Pillow reads.
    text = path.read_text().partition('id="data">')[2].partition("</script>")[0]
    data = json.loads(text)
    for uri in data["thumbnails"]:
        head, _, body = uri.partition(",")
        assert head.startswith("data:image/")
        with Image.open(io.BytesIO(base64.b64decode(body))) as image:
            assert max(image.size) == _SIDE
