"""Chromium, without a window and without a GPU."""

import contextlib
import shutil

import pytest

# Seconds for a page to load.
PATIENCE = 90.0


@contextlib.contextmanager
def chromium(folder):
    """Yields a driver of selenium; skips the test where there is none."""
    selenium = pytest.importorskip("selenium.webdriver")
    programs = [shutil.which(x) for x in ("chromium", "chromedriver")]
    if not all(programs):
        pytest.skip("Debian's chromium and chromium-driver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = programs[0]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        # WebGL, of the projector, without a GPU.
        "--enable-unsafe-swiftshader",
        f"--user-data-dir={folder / 'browser'}",
        "--window-size=1300,860",
    ):
        options.add_argument(argument)
    service = selenium.ChromeService(programs[1])
    driver = selenium.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(PATIENCE)
        yield driver
    finally:
        driver.quit()
