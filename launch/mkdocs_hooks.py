"""The website's pages from outside of docs/, and its dialect of Markdown."""

import pathlib
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# File in the root -> page.
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}


def on_files(files: Files, config: Any) -> Files:
    for name, page in _PAGES.items():
        text = (_ROOT / name).read_text().replace("](docs/", "](")
        for other, target in _PAGES.items():
            text = text.replace(f"]({other}", f"]({target}")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = markdown.replace("](../../README.md", "](../index.md")
    # Markdown inside of HTML, as everywhere else.
    return markdown.replace("<details>", '<details markdown="1">')
