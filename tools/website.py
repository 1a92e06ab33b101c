"""Writes the website: guide and results of docs/, and the API reference.

Use: website.py FOLDER, called by tools/docs. Warnings, such as names that do
not resolve and broken links, are errors.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main(folder: pathlib.Path) -> int:
    start = folder / "index.html"
    earlier = start.exists() and (folder / "reference").exists()
    if folder.exists() and any(folder.iterdir()) and not earlier:
        print(
            f"docs: {folder} holds other files: use a new or empty folder, or"
            " the one of an earlier website",
            file=sys.stderr,
        )
        return 2
    build = ["-m", "mkdocs", "build", "--strict"]
    config = f"--config-file={ROOT / 'tools' / 'mkdocs.yml'}"
    status = subprocess.call(
        [sys.executable, *build, config, f"--site-dir={folder}"],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    if not status:
        print(f"written: {start}")
    return status


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
