"""The website's navigation, its generated pages, and what the API has."""

import importlib
import pathlib
import pkgutil
import re
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

import tf_contrastive
from tf_contrastive import evaluation

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# File in the root -> page.
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
_PACKAGE = "tf_contrastive"
# Characters of a line that fits beside the navigation.
_WIDTH = 70
# These offer their modules, of which each has a page.
_OF_MODULES = ("config", "evaluation")


def _api() -> dict[str, dict[str, str]]:
    """Returns public module -> the paths and texts of its pages."""
    load = f"[`load`][{_PACKAGE}.exporting.load]"
    start = f"# API\n\n::: {_PACKAGE}\n\n{load} is here, too.\n"
    pages = {"": {"reference/index.md": start}}
    for name in tf_contrastive._MODULES:
        names = [name]
        if name in _OF_MODULES:
            folder = str(_ROOT / _PACKAGE / name)
            inner = pkgutil.iter_modules([folder])
            names += [f"{name}.{module.name}" for module in inner]
        pages[name] = {
            f"reference/{module}.md": f"# {module}\n\n::: {_PACKAGE}.{module}\n"
            for module in names
        }
    # Its methods are in base classes.
    pages["model"]["reference/model.md"] += (
        "    options: {inherited_members: true}\n"
    )
    pages["evaluation"]["reference/evaluation.md"] += "\n" + "\n".join(
        f"- [`{function}`][{_PACKAGE}.evaluation.{module}.{function}]"
        for function, module in evaluation._MODULE_OF.items()
    )
    return pages


def _linked(page: str) -> list[str]:
    """Returns the page and those in folders that it links, in order."""
    text = (_ROOT / "docs" / page).read_text()
    return [page, *dict.fromkeys(re.findall(r"\]\((\w+/[\w-]+\.md)", text))]


def on_config(config: Any) -> Any:
    start, reference = config.nav
    config.nav = [
        start,
        {"Guide": _linked("guide.md")},
        {"Results": [p for p in _linked("RESULTS.md") if "guide/" not in p]},
        {
            "API": [
                {name: list(pages)} if len(pages) > 1 else next(iter(pages))
                for name, pages in _api().items()
            ]
        },
        reference,
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    style = (_ROOT / "tools" / "website.css").read_text()
    pages = {"website.css": style}
    for of_module in _api().values():
        pages |= of_module
    for name, page in _PAGES.items():
        text = (_ROOT / name).read_text().replace("](docs/", "](")
        for other, target in _PAGES.items():
            text = text.replace(f"]({other}", f"]({target}")
        pages[page] = text
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def _highlight(block: re.Match[str]) -> str:
    """Marks blocks of commands, and breaks long ones before their flags."""
    indent, language, text = block.groups()
    if language:
        return block[0]
    lines = [
        line
        if len(line) <= _WIDTH or re.search("[#'\"]", line)
        else line.replace(" --", f" \\\n{indent}  --")
        for line in text.splitlines()
    ]
    return "\n".join([f"{indent}```bash", *lines, f"{indent}```"])


def on_page_markdown(markdown: str, **_: Any) -> str:
    # Markdown inside of HTML, as everywhere else.
    markdown = markdown.replace("<details>", '<details markdown="1">')
    return _BLOCK.sub(_highlight, markdown)


def on_page_content(html: str, **_: Any) -> str:
    # Browsers break `--flag` after its hyphens.
    return re.sub(
        r"<code>([^\s<]{1,40})</code>", r'<code class="word">\1</code>', html
    )


class Extension(griffe.Extension):
    """The package's rules of what is public, and its options' values."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        special = obj.name.startswith("__") and obj.name != "__call__"
        obj.public = False if special else None

    def on_attribute_instance(
        self, *, attr: griffe.Attribute, **_: Any
    ) -> None:
        if not attr.path.startswith(f"{_PACKAGE}.config."):
            return
        module = importlib.import_module(attr.module.path)
        declaration = getattr(module, attr.parent.name, None)
        fields = getattr(declaration, "__dataclass_fields__", {})
        if attr.name in fields and "help" in fields[attr.name].metadata:
            field = fields[attr.name]
            attr.value = repr(field.default)
            attr.docstring = griffe.Docstring(
                field.metadata["help"], parent=attr
            )
