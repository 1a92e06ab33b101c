"""Links, paths, command lines and snippets of the documents; the reference."""

import ast
import importlib
import re
import shlex
import sys
import types
from pathlib import Path

import processes
import pytest

from lab.__main__ import COMMANDS as LAB
from lab.__main__ import main as lab_main
from tf_contrastive import __main__, flags
from tf_contrastive.commands.evaluate import Evaluate

_ROOT = Path(__file__).resolve().parents[1]
_DOCUMENTS = {
    str(path.relative_to(_ROOT)): path.read_text("utf-8")
    for path in [*_ROOT.glob("*.md"), *sorted(_ROOT.glob("docs/**/*.md"))]
    # `reproduce --report` writes the results.
    if path.name != "RESULTS.md" and path.parent.name != "results"
}
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SCRIPT = re.compile(r"(?:\./)?(?:launch|tools)/(\w+)\b(.*)")
# The package and the laboratory beside it.
_MAINS = {"tf_contrastive": __main__.main, "lab": lab_main}
_MODULE = re.compile(r"python -m (tf_contrastive|lab) (.*)")

of_each_document = pytest.mark.parametrize("name", _DOCUMENTS)
# Others have names of other projects, and of other versions.
of_our_names = pytest.mark.parametrize(
    "name", sorted({*_DOCUMENTS} - {"CHANGELOG.md", "docs/migrating.md"})
)


def _blocks(text, *languages):
    """Contents of the fenced blocks of these languages, without indent."""
    return [
        re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        for match in _FENCE.finditer(text)
        if match[2] in languages
    ]


def _code(text):
    """Lines of shell blocks, and code spans in the text."""
    spans = re.findall(r"`([^`]+)`", _FENCE.sub("", text))
    return [
        *"\n".join(_blocks(text, "", "sh")).splitlines(),
        *(" ".join(span.split()) for span in spans),
    ]


def _words(line):
    """Words of a command, up to a comment or the shell's next command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    words = list(lexer)
    ends = [i for i, word in enumerate(words) if re.fullmatch("[;|&]+", word)]
    return words[: min(ends, default=len(words))]


def _command_lines(text):
    """Package and arguments of every command line, also of scripts."""
    for line in _code(text):
        if match := _SCRIPT.match(line):
            words = _words(match[2])
            starts = [i for i, w in enumerate(words) if w in __main__.COMMANDS]
            if starts and "..." not in words:
                yield "tf_contrastive", words[starts[0] :]
        elif match := _MODULE.search(line):
            words = _words(match[2])
            if words[0] != "COMMAND":
                # A run that does not exist yet has not written its flags.
                words = [w for w in words if "--flagfile=runs/" not in w]
                yield match[1], words


@of_each_document
def test_links_resolve(name):
    text = re.sub(r"`[^`]*`", "", _FENCE.sub("", _DOCUMENTS[name]))
    for link in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = link.partition("#")
        if file.startswith(("http://", "https://")):
            continue
        target = (_ROOT / name).parent / file if file else _ROOT / name
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            slugs = [
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                for heading in headings
            ]
            assert anchor in slugs, link


@of_our_names
def test_paths_exist(name):
    folders = "configs|docs|examples|lab|launch|tests|tf_contrastive|tools"
    places = rf"(--flagfile=)?(({folders})/[\w./*-]+)"
    for line in _code(_DOCUMENTS[name]):
        for word in line.split():
            if match := re.fullmatch(places, word):
                assert list(_ROOT.glob(match[2].rstrip("/"))), word


@of_our_names
def test_command_lines_parse(name, monkeypatch, capsys):
    monkeypatch.chdir(_ROOT)
    monkeypatch.syspath_prepend(_ROOT / "examples")
    command = types.SimpleNamespace(run=lambda options: 0)
    really = importlib.import_module

    def import_module(name):
        return command if ".commands." in name else really(name)

    for package, words in _command_lines(_DOCUMENTS[name]):
        monkeypatch.setattr(sys, "argv", [package, *words])
        with monkeypatch.context() as patch:
            patch.setattr(importlib, "import_module", import_module)
            status = _MAINS[package]()
        assert status == 0, (words, capsys.readouterr().err)


@of_our_names
def test_flags_exist(name):
    known = {"help", "helpfull", "flagfile", "own_modules", "logdir"}
    known |= {"master"}  # Of spark-submit.
    for config_class in [*__main__.COMMANDS.values(), *LAB.values()]:
        names = flags.names(config_class)
        known.update(names, (f"no{name}" for name in names))
    known.update(f"evaluate_{name}" for name in flags.names(Evaluate))
    places = [*_ROOT.glob("launch/*"), *_ROOT.glob("tools/*")]
    scripts = [path for path in places if path.is_file()]
    for script in (*scripts, _ROOT / "tests" / "conftest.py"):
        known.update(re.findall(r"--(\w+)", script.read_text("utf-8")))
    for line in _code(_DOCUMENTS[name]):
        if not line.startswith(("pip ", "git ")):
            for flag, star in re.findall(r"(?<![\w-])--(\w+)(\*?)", line):
                found = [n for n in known if n.startswith(flag)]
                assert found if star else flag in known, line


@of_each_document
def test_snippets_use_existing_names(name):
    for snippet in _blocks(_DOCUMENTS[name], "python"):
        tree, modules = ast.parse(snippet), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    module = importlib.import_module(alias.name)
                    modules[alias.asname or alias.name] = module
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    scope = {}
                    exec(f"from {node.module} import {alias.name} as x", scope)
                    modules[alias.asname or alias.name] = scope["x"]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                module = modules.get(ast.unparse(node.value))
                if isinstance(module, types.ModuleType):
                    assert hasattr(module, node.attr), ast.unparse(node)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/guide/evaluate.md"])
def test_snippets_run(name):
    for snippet in _blocks(_DOCUMENTS[name], "python"):
        exec(compile(snippet, name, "exec"), {"__name__": "snippet"})


@pytest.mark.slow
def test_the_website_is_written_without_warnings(tmp_path):
    pages = tmp_path / "pages"
    script = [sys.executable, "tools/website.py"]
    processes.run([*script, pages])
    losses = (pages / "reference/losses.html").read_text()
    assert "exp(z_i" in losses
    assert "_temperature(" not in losses  # The default's value instead.
    # A folder with other files is not overwritten.
    (tmp_path / "thesis.txt").write_text("years of work")
    processes.run([*script, tmp_path], status=2)
