"""One absl flag per option of a command, and flagfiles.

Each command has its own `FlagValues`: `--help` shows only the command's flags,
and a name may have another default in another command.

Options that only an ablation uses share a flag, such as
`--loss_options=contrast=one_view,epsilon_in=cosine`. A flag of their own, as in
version 0.2.0, is accepted, too.
"""

import contextlib
import itertools
import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from absl import flags as absl_flags

from tf_contrastive.base import errors, terminal
from tf_contrastive.config import fields, own
from tf_contrastive.config.fields import Command, Option

# Flags of version 0.2.0 -> their names now.
_RENAMED = {
    "normalize_features": "l2_normalize_features",
    "linear_normalize_features": "linear_l2_normalize_features",
}
# Flags of version 0.2.0 that are ignored -> their default.
_IGNORED = {"cross_device_ops": "auto"}
# Of the options that a run was started with.
_FIRST_LINE = "# All options of a run, in as many lines as the last one says."
# Version 0.2.0 wrote no such lines, and no quotes.
_END_OF_0_2_0 = re.compile(r"\n# terminal\n--verbosity=\w+\n\Z")
_UNQUOTED = re.compile(rf"(?s)\n--cross_device_ops=.*{_END_OF_0_2_0.pattern}")
# Flag of a run of version 0.2.0 -> what that version did without a flag.
_ALWAYS_IN_0_2_0 = {
    "--stem=imagenet": "--pool_padding=symmetric",
    "--augmentation=ablation:": "--ablation_form=0.2.0",
    "--loss=decoupled_ntxent": "--loss_options=alignment=similarity",
    "--encoder=keras:RegNet": "--standardize=none",
}
# A line of a flagfile, and its parts.
_LINE = re.compile(r"(--?\w[^\s=]*)(?:\s*(=)|(?=\s)|$)(.*)")
_QUOTED = re.compile(
    r"""(?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)")"""
    r"(?:\s+(?:#|//).*)?"
)
_COMMENT = re.compile(r"\s(?:#|//)(?:\s.*)?$")
# What can be read in two ways.
_AMBIGUOUS = {
    "a quote that is not closed, or not around the whole value": re.compile(
        r"""["]|(?<!\w)'|'(?!\w)"""
    ),
    "a second flag": re.compile(r"\s--\w"),
    "a # or // that may start a comment": re.compile(r"\s(?:#|//)"),
}
# Characters of a flagfile.
_MAX_FLAGFILE = 1 << 20

_FLAGFILE = (
    "read flags from a file, one per line; quotes around a value and a comment"
    " after it (# ...) are no part of it"
)

_OWN_MODULES = (
    "allow a run to import these modules, which its files name (module:name);"
    " those of this command line are allowed already"
)

Config = TypeVar("Config", bound=Command)


class _Text(absl_flags.Flag):
    """A flag whose value is read by `fields.read`, after all of them."""

    def __init__(self, name: str, boolean: bool = False) -> None:
        parser: Any = absl_flags.ArgumentParser()
        super().__init__(parser, None, name, None, name, boolean=boolean)


class _Family(_Text):
    """A flag whose value, KEY=VALUE,KEY=VALUE, sets other flags."""

    def __init__(self, name: str, members: Mapping[str, absl_flags.Flag]):
        super().__init__(name)
        self._members = members

    def parse(self, argument: str) -> None:
        """Sets the flags. A list of numbers may have commas, too."""
        further = []
        for pair in fields.split_pairs(argument):
            key, equals, text = pair.partition("=")
            if key not in self._members:
                if "" not in self._members:
                    raise self.unknown(key)
                further.append(pair)  # Of a part of the user's own.
                continue
            if not equals:
                raise absl_flags.Error(
                    f"missing value in --{self.name}={key}: use"
                    f" --{self.name}={key}={fields.AUTO}, or another value"
                )
            self._members[key].parse(text)
        if further:
            others = self._members[""]
            others.parse(",".join([*filter(None, [others.value]), *further]))

    def unknown(self, key: str) -> errors.UserError:
        """Returns the error for a key that is not one of its flags."""
        known = filter(None, self._members)
        return errors.unknown(f"option in --{self.name}", key, known)


def _families(options: Iterable[Option]) -> dict[str, dict[str, Option]]:
    """Returns the flags that several options share: flag -> key -> option."""
    families: dict[str, dict[str, Option]] = {}
    for option in options:
        if option.family:
            families.setdefault(option.family, {})[option.key] = option
    return families


def parse(config_class: type[Config], arguments: list[str]) -> Config:
    """Parses a command's flags.

    Later flags override earlier ones. `--flagfile=PATH` is replaced by the
    flags in that file, which may name further flagfiles by paths relative to
    its own folder or to the working directory. Each value of the result is
    valid by itself; see the class's `validate`.

    Raises:
      UserError: for an unknown flag, a value that is not allowed, a word that
        is not a flag, or a flagfile that cannot be read.
    """
    defaults = config_class()
    options = {option.name: option for option in fields.options(defaults)}
    values = _values(config_class, arguments)
    given = {
        name: fields.read(name, option.field, str(values[name].value))
        for name, option in options.items()
        if values[name].present
    }
    for option in options.values():
        kind = option.name.removesuffix("_own")
        if option.family and not option.key and given.get(option.name):
            chosen = given.get(kind, options[kind].value)
            if not fields.module_of(chosen):
                key = given[option.name].partition("=")[0]
                family: Any = values[option.family]
                raise family.unknown(key)
    parsed = fields.replace(defaults, **config_class.presets(given) | given)
    fields.validate_fields(parsed)
    return parsed


def texts(config_class: type[Command], arguments: list[str]) -> dict[str, str]:
    """Returns the texts that a command's flags give to options, by name.

    Raises:
      UserError: for an unknown flag, or a word that is not a flag.
    """
    values = _values(config_class, arguments)
    return {
        option.name: str(values[option.name].value)
        for option in fields.options(config_class())
        if values[option.name].present
    }


def with_others(config_class: type[Command], words: list[str]) -> list[str]:
    """Returns words with those of other commands in the option `OTHERS`."""
    known = set(names(config_class))
    parts: dict[bool, list[str]] = {True: [], False: []}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word[:1] == "-" and "=" not in word and rest and rest[0][:1] != "-":
            word = f"{word}={rest.pop(0)}"
        is_own = not known.isdisjoint(named(word))
        parts[is_own].append(word)
    return [*parts[True], f"--{config_class.OTHERS}={shlex.join(parts[False])}"]


def named(word: str) -> tuple[str, str]:
    """Returns the flags that a word may give: --NAME, or --noNAME as NAME."""
    name = word.lstrip("-").partition("=")[0]
    return name, name.removeprefix("no")


def _values(
    config_class: type[Command], arguments: list[str]
) -> absl_flags.FlagValues:
    """Returns the flags of a command, with the texts of those given."""
    options = {o.name: o for o in fields.options(config_class())}
    values = absl_flags.FlagValues()
    for name, option in options.items():
        values[name] = _Text(name, fields.value_type(option.field) is bool)
    for name, members in _families(options.values()).items():
        known = {key: values[o.name] for key, o in members.items()}
        values[name] = _Family(name, known)
    for name in _IGNORED:
        values[name] = _Text(name)
    for old, name in _RENAMED.items():
        if name in options:
            absl_flags.DEFINE_alias(old, name, flag_values=values)
    words = _inlined(arguments)
    for word, following in itertools.pairwise(words):
        name = word.lstrip("-")
        takes_value = name in values and not values[name].boolean
        # absl takes the next flag as the value.
        if takes_value and word[:1] == "-" and following[:2] == "--":
            raise errors.UserError(
                f"missing value of --{name}: use --{name}=VALUE"
            )
    try:
        rest = values(["", *words], known_only=True)[1:]
    # absl raises a plain ValueError for --noNAME=VALUE.
    except (absl_flags.Error, ValueError) as error:
        raise errors.UserError(str(error)) from error
    if rest:
        raise _unexpected(rest[0], names(config_class))
    for name, default in _IGNORED.items():
        if values[name].value not in (None, default):
            terminal.warning(f"--{name}={values[name].value} is ignored")
    return values


def _unexpected(word: str, known: Iterable[str]) -> errors.UserError:
    if not word.startswith("-"):
        return errors.UserError(
            f"stray word {word!r}: flags are written --name=value"
        )
    name = word.lstrip("-").partition("=")[0]
    match = errors.nearest(name, known)
    hint = f"did you mean --{match}? " if match else ""
    return errors.UserError(f"unknown flag --{name}: {hint}see --help")


def names(config_class: type[Command]) -> list[str]:
    """Returns the names of a command's flags, as `--helpfull` lists them."""
    options = fields.options(config_class())
    found = dict.fromkeys(o.family or o.name for o in options)
    return [name for name in found if name != config_class.OTHERS]


def _inlined(arguments: list[str], files: tuple[str, ...] = ()) -> list[str]:
    """Replaces `--flagfile` by the lines of the file.

    absl's own flagfiles resolve relative paths only by the working directory.
    It also takes quotes and comments after a flag as parts of the value; see
    `_flags_in`. `files` are the flagfile of the arguments, after those that
    include it.
    """
    result: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, path = word.partition("=")
        if name not in ("--flagfile", "-flagfile") or not (equals or rest):
            result.append(word)
            continue
        path = os.path.expanduser((path if equals else rest.pop(0)).strip())
        if files:
            relative = os.path.join(os.path.dirname(files[-1]), path)
            path = relative if os.path.exists(relative) else path
        path = os.path.normpath(path)
        if not os.path.exists(path):
            path = packaged_flagfile(path) or path
        if path in files:
            raise errors.UserError(
                f"--flagfile={path} includes itself"
                f" ({' in '.join((path, *reversed(files)))}): remove it"
            )
        result += _inlined(_read_flagfile(path, files), (*files, path))
    return result


def packaged_flagfile(path: str) -> str | None:
    """Returns the file of a recipe, configs/NAME.flags, of this package."""
    folder, name = os.path.split(path)
    package = os.path.dirname(os.path.abspath(__file__))
    # In a wheel they are in the package, in a clone beside it.
    places = (os.path.join(top, folder) for top in (package, f"{package}/.."))
    files = (os.path.normpath(os.path.join(place, name)) for place in places)
    found = (file for file in files if os.path.exists(file))
    return next(found, None) if folder == "configs" else None


def _read_flagfile(path: str, files: tuple[str, ...]) -> list[str]:
    try:
        # Also a FIFO, as of <(...) in a shell. Editors may write a mark before
        # the text, which "utf-8-sig" removes.
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MAX_FLAGFILE + 1)
        if len(text) > _MAX_FLAGFILE:  # Devices never end.
            raise ValueError(f"more than {_MAX_FLAGFILE:,} characters")
        return _flags_in(text)
    except (OSError, ValueError) as error:
        included = f", included by {files[-1]}," if files else ""
        reason = getattr(error, "strerror", None) or error
        raise errors.UserError(
            f"--flagfile={path}{included} cannot be read ({reason}): use a"
            " text file with one flag per line, --name=value"
        ) from error


def _flags_in(text: str) -> list[str]:
    """Returns the flags in a flagfile: --name, or --name=value.

    Quotes around a value and a comment after it are no part of it.

    Raises:
      ValueError: for a line that can be read in two ways, or if a run wrote the
        file, and it is not whole.
    """
    if text.startswith(_FIRST_LINE) and not text.endswith(
        f"\n{_last_line(text)}\n"
    ):
        raise ValueError("it is cut off, or lacks options")
    is_plain = _UNQUOTED.search(text)
    flags = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or re.match("#|//", line):
            continue
        try:
            flags.append(line if is_plain else _flag_in(line))
        except ValueError as error:
            raise ValueError(f"line {number}, {line}: {error}") from error
    for given, implied in _ALWAYS_IN_0_2_0.items():
        if is_plain and any(flag.startswith(given) for flag in flags):
            flags.append(implied)
    return flags


def _flag_in(line: str) -> str:
    """Returns the flag in a line of a flagfile.

    Raises:
      ValueError: if it can be read in two ways.
    """
    match = _LINE.fullmatch(re.sub(r"\s\\$", "", line))  # As in a shell.
    if not match:
        raise ValueError("it is not a flag")
    name, equals, value = match[1], match[2], match[3]
    if re.match("\\s*[\"']", value):
        quoted = _QUOTED.fullmatch(value.strip())
        if not quoted:
            raise ValueError("it has a quote that is not closed, or text after")
        value = quoted["single"]
        if value is None:
            value = re.sub(r"\\([\"\\])", r"\1", quoted["double"])
        return f"{name}={value}"
    value = _COMMENT.sub("", value)
    for what, pattern in _AMBIGUOUS.items():
        if pattern.search(value):
            raise ValueError(f"it has {what}: put quotes around the value")
    value = value.strip()
    return f"{name}={value}" if equals or value else name


def _line_of(flag: str) -> str:
    """Returns the line of a flagfile for --name=value, in quotes if needed."""
    with contextlib.suppress(ValueError):
        if _flag_in(flag) == flag:
            return flag
    name, _, value = flag.partition("=")
    value = re.sub(r"([\"\\])", r"\\\1", value)
    return f'{name}="{value}"'


def allow_own_modules(words: list[str]) -> list[str]:
    """Allows the parts that a command line names; returns the other words.

    They are the values of `--own_modules=MODULE,...`, or of flags that are
    `module:name`. Flagfiles, which may be somebody else's, allow none.

    Raises:
      UserError: for a value that is no list of modules.
    """
    flag, rest, before = f"--{own.ARGUMENT}", [], ""
    for word in words:
        name, _, value = word.partition("=")
        if not word.startswith("-"):  # --NAME VALUE
            name, value = before, word
        part = value.rpartition("of=")[2]  # Or of a dataset that is made of it.
        if name == flag and (value or before == flag):
            if not re.fullmatch(r"[A-Za-z_][\w.]*(,[A-Za-z_][\w.]*)*", value):
                raise errors.UserError(
                    f"{flag}={value}: must be names of modules, such as"
                    " my_module,other"
                )
            own.allow(*value.split(","))
        elif fields.module_of(part):
            own.allow(part)
        if name != flag:
            rest.append(word)
        before = name if word.startswith("-") else ""
    if before == flag and not words[-1].partition("=")[2]:
        raise errors.UserError(f"{flag} needs the names of modules")
    return rest


def help_text(config_class: type[Command], everything: bool = True) -> str:
    """Returns the flags of a command: all, or those in its `COMMON`."""
    options = list(fields.options(config_class()))
    shown = options
    if not everything and config_class.COMMON:
        shown = [o for o in options if o.name in config_class.COMMON]
    lines: list[str] = []
    for group, members in itertools.groupby(shown, lambda o: o.group):
        lines += ["", f"{group}:"]
        of_group = list(members)
        for option in of_group:
            if option.name == config_class.OTHERS:
                lines += _entry("[--FLAG=VALUE,VALUE ...]", option, 2)
            elif not option.family:
                lines += _entry(f"--{_usage(option)}", option, 2)
        for name, family in _families(of_group).items():
            lines += _wrap(f"--{name}=NAME=VALUE,NAME=VALUE", 2, 6)
            lines += ["      options that have no flag of their own:"]
            for key, option in family.items():
                usage = f"{key or 'NAME'}={_allowed(option)}"
                lines += _entry(usage, option, 6)
    lines += ["", "  --flagfile=PATH", *_wrap(_FLAGFILE, 6, 6)]
    lines += [f"  --{own.ARGUMENT}=MODULE,MODULE", *_wrap(_OWN_MODULES, 6, 6)]
    if rest := [o for o in options if o not in shown]:
        count = len(names(config_class)) - len(shown)
        groups = ", ".join(dict.fromkeys(o.group for o in rest))
        others = f"{count} more flags, of {groups}: see --helpfull"
        lines += ["", *_wrap(others, 0, 0)]
    return "\n".join(lines).lstrip("\n")


def _entry(usage: str, option: Option, indent: int) -> list[str]:
    return [
        *_wrap(usage, indent, indent + 4),
        *_wrap(option.field.metadata["help"], indent + 4, indent + 4),
    ]


def _wrap(text: str, first: int, others: int) -> list[str]:
    """Wraps a text at 80 columns, with these indents."""
    return textwrap.wrap(
        text,
        width=80,
        initial_indent=" " * first,
        subsequent_indent=" " * others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _allowed(option: Option) -> str:
    kind = fields.value_type(option.field)
    values = option.field.metadata["choices"] or (kind.__name__.upper(),)
    # With spaces, a long list can be wrapped.
    return " | ".join(("true", "false") if kind is bool else values)


def _usage(option: Option) -> str:
    name = option.name
    if option.field.metadata["required"]:
        return f"{name}={name.upper()} (required)"
    default = fields.written(option.value)
    shown = f" (default: {default})" if default else ""
    if fields.value_type(option.field) is bool:
        return f"[no]{name}{shown}"
    return f"{name}={_allowed(option)}{shown}"


def with_flags(config_class: type[Command], marked: str) -> str:
    """Shows a message with the arguments that it names as flags.

    They become `--name`, `--name=value` or `--noname`; those that the command
    does not have stay arguments.
    """
    known = {option.name: option for option in fields.options(config_class())}

    def flag(name: str, value: str | None) -> str:
        option = known.get(name)
        if name == own.ARGUMENT:
            return f"--{name}={value}"
        if option is None:
            return f"`{name}`" if value is None else f"{name}={value}"
        boolean = fields.value_type(option.field) is bool
        if boolean and value in ("True", "False"):
            value = value.lower()
        if boolean and value in ("true", "false") and not option.family:
            return f"--{name}" if value == "true" else f"--no{name}"
        if option.family:
            name = f"{option.family}={option.key}"
        return f"--{name}" if value is None else f"--{name}={value}"

    return errors.shown(marked, flag)


def write(config: Command) -> str:
    """Returns the text of a flagfile with all options but the workdir.

    Options that share a flag are left out where they are `auto`. `read` and
    `--flagfile=FILE --workdir=W` parse it.
    """
    options = [o for o in fields.options(config) if o.name != "workdir"]
    lines = []
    for group, members in itertools.groupby(options, lambda o: o.group):
        lines.append(f"# {group}")
        shared: dict[str, list[str]] = {}
        for option in members:
            text = fields.written(option.value)
            if option.family and option.value is not None:
                pairs = shared.setdefault(option.family, [])
                pairs += [f"{option.key}={text}" if option.key else text]
            elif isinstance(option.value, bool):
                lines.append(f"--{'' if option.value else 'no'}{option.name}")
            elif not option.family:
                lines.append(_line_of(f"--{option.name}={text}"))
        lines += [
            _line_of(f"--{name}={','.join(p)}") for name, p in shared.items()
        ]
    return "\n".join(lines) + "\n"


def record(config: Command) -> str:
    """Returns the text of a run's `config.flags`, for `read`.

    It is a flagfile, too; see `write`. Its last line shows that it is whole.
    """
    text = write(config)
    return f"{_FIRST_LINE}\n{text}{_last_line(text)}\n"


def read(config_class: type[Config], text: str, workdir: str) -> Config:
    """Parses what `record` returned, for a run at `workdir`.

    Raises:
      ValueError: if it is cut off, something else, or not valid.
    """
    if not text.startswith(_FIRST_LINE) and not _END_OF_0_2_0.search(text):
        raise ValueError("it is not whole, or was not written by a run")
    return parse(config_class, [*_flags_in(text), f"--workdir={workdir}"])


def _last_line(text: str) -> str:
    count = sum(line.startswith("--") for line in text.splitlines())
    return f"# End: {count} options."
