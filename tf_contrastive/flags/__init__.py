"""One absl flag per option of a command, and the options of a run as text.

Each command has its own `FlagValues`: `--help` shows only the command's flags,
and a name may have another default in another command. Only here are the
options of all members of a family known: `--temperature` is a flag, whatever
the loss. Options without a flag of their own share one, such as
`--loss_options=contrast=one_view,epsilon_in=cosine`.
"""

import dataclasses
import itertools
import re
import shlex
import textwrap
from typing import Any, TypeVar

from absl import flags as absl_flags

from tf_contrastive.base import errors
from tf_contrastive.config import fields, own
from tf_contrastive.config.components import Family
from tf_contrastive.config.fields import Command, Option
from tf_contrastive.flags import flagfiles

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
    """A flag whose value is read after all flags are known."""

    def __init__(self, name: str, boolean: bool = False) -> None:
        parser: Any = absl_flags.ArgumentParser()
        super().__init__(parser, None, name, None, name, boolean=boolean)


class _Pairs(_Text):
    """A flag whose value is KEY=VALUE,KEY=VALUE; further ones are added."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.value: dict[str, str] = {}

    def parse(self, argument: str) -> None:
        """Adds the pairs. A list of numbers may have commas, too."""
        for pair in fields.split_pairs(argument):
            key, equals, text = pair.partition("=")
            if not equals:
                raise absl_flags.Error(
                    f"missing value in --{self.name}={key}: use"
                    f" --{self.name}={key}={fields.AUTO}, or another value"
                )
            self.value = {**self.value, key: text}
        self.present += 1


def declared(config_class: type[Command]) -> dict[str, Option]:
    """Returns the options of a command by name, also of members not chosen."""
    options = fields.options(config_class(), every=True)
    return {option.name: option for option in options}


def names(config_class: type[Command]) -> list[str]:
    """Returns the names of a command's flags, as `--helpfull` lists them."""
    options = declared(config_class).values()
    found = dict.fromkeys(o.family or o.name for o in options)
    return [name for name in found if name != config_class.OTHERS]


# ---- From the command line ---------------------------------------------------


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
    # The values of components are read once it is known which are chosen.
    given: dict[str, Any] = texts(config_class, arguments)
    for name, option in options.items():
        if name in given and not option.of_component:
            given[name] = fields.read(name, option.field, given[name])
    given = config_class.presets(given) | given
    parsed = fields.replace(defaults, **given)
    fields.validate_fields(parsed)
    return parsed


def texts(config_class: type[Command], arguments: list[str]) -> dict[str, Any]:
    """Returns the texts that a command's flags give to options, by name.

    Those of a component that have no name among the command's options are a
    dict, by the name of their flag.

    Raises:
      UserError: for an unknown flag, or a word that is not a flag.
    """
    options = declared(config_class)
    keys = {(o.family, o.key): name for name, o in options.items() if o.family}
    of_components = {o.family for o in options.values() if o.of_component}
    values = _values(config_class, options, arguments)
    found: dict[str, Any] = {}
    for name in values:
        value = values[name].value
        if name in options and values[name].present:
            found[name] = str(value)
        elif name not in options:
            for key, text in value.items():
                if (name, key) in keys:
                    found[keys[name, key]] = text
                elif name in of_components:
                    found.setdefault(name, {})[key] = text
                else:
                    known = [key for family, key in keys if family == name]
                    raise errors.unknown(f"option in --{name}", key, known)
    return found


def _values(
    config_class: type[Command],
    options: dict[str, Option],
    arguments: list[str],
) -> absl_flags.FlagValues:
    """Returns the flags of a command, with the texts of those given."""
    values = absl_flags.FlagValues()
    for name, option in options.items():
        if option.family:
            if option.family not in values:
                values[option.family] = _Pairs(option.family)
        else:
            is_boolean = fields.value_type(option.field) is bool
            values[name] = _Text(name, is_boolean)
    words = flagfiles.inlined(arguments)
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
        raise _unexpected(rest[0], config_class)
    return values


def _unexpected(word: str, config_class: type[Command]) -> errors.UserError:
    if not word.startswith("-"):
        return errors.UserError(
            f"stray word {word!r}: flags are written --name=value"
        )
    name = word.lstrip("-").partition("=")[0]
    option = declared(config_class).get(name)
    if option:
        use = f"--{option.family}={option.key}=VALUE"
        return errors.UserError(f"unknown flag --{name}: use {use}")
    match = errors.nearest(name, names(config_class))
    hint = f"did you mean --{match}? " if match else ""
    return errors.UserError(f"unknown flag --{name}: {hint}see --help")


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


# ---- For people --------------------------------------------------------------


def help_text(config_class: type[Command], everything: bool = True) -> str:
    """Returns the flags of a command: all, or those in its `COMMON`."""
    options = [
        option
        for option in declared(config_class).values()
        if not option.field.metadata["rare"]
    ]
    shown = options
    if not everything and config_class.COMMON:
        shown = [o for o in options if o.name in config_class.COMMON]
    automatic = _automatic(config_class())
    lines: list[str] = []
    for group, members in itertools.groupby(shown, lambda o: o.group):
        lines += ["", f"{group}:"]
        families: dict[str, list[Option]] = {}
        for option in members:
            if option.name == config_class.OTHERS:
                lines += _entry(
                    "[--FLAG=VALUE,VALUE ...]", option, 2, automatic
                )
            elif option.family:
                families.setdefault(option.family, []).append(option)
            else:
                lines += _entry(f"--{_usage(option)}", option, 2, automatic)
        for name, of_family in families.items():
            lines += _wrap(f"--{name}=NAME=VALUE,NAME=VALUE", 2, 6)
            lines += ["      options that have no flag of their own:"]
            for option in of_family:
                usage = f"{option.key}={_allowed(option)}"
                lines += _entry(usage, option, 6, automatic)
    lines += ["", "  --flagfile=PATH", *_wrap(_FLAGFILE, 6, 6)]
    lines += [f"  --{own.ARGUMENT}=MODULE,MODULE", *_wrap(_OWN_MODULES, 6, 6)]
    if rest := [o for o in options if o not in shown]:
        count = len(names(config_class)) - len(shown)
        groups = ", ".join(dict.fromkeys(o.group for o in rest))
        others = f"{count} more flags, of {groups}: see --helpfull"
        lines += ["", *_wrap(others, 0, 0)]
    return "\n".join(lines).lstrip("\n")


def _automatic(config: Any, prefix: str = "") -> dict[str, str]:
    """Returns what `auto` means for options of components, by their names."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value, about = getattr(config, field.name), field.metadata
        if family := about.get("component"):
            for option in family.declared:
                name = prefix + family.option_name(option)
                found[name] = _defaults(family, option)
        elif dataclasses.is_dataclass(value):
            found |= _automatic(value, prefix + about["prefix"])
    return found


def _defaults(family: Family, option: str) -> str:
    """Describes the defaults of an option, and of which members they are."""
    takers: dict[str, list[str]] = {}
    for name, member in family.takers(option).items():
        here = family.defaults.get(name, {})
        default = fields.written({**member.defaults(), **here}[option])
        takers.setdefault(default, []).append(name)
    return ", ".join(
        default if len(names) > 4 else f"{default} ({', '.join(names)})"
        for default, names in takers.items()
    )


def _entry(
    usage: str, option: Option, indent: int, automatic: dict[str, str]
) -> list[str]:
    help = option.field.metadata["help"]
    if option.name in automatic and "auto:" not in help:
        help += f"; auto: {automatic[option.name]}"
    return [
        *_wrap(usage, indent, indent + 4),
        *_wrap(help, indent + 4, indent + 4),
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
    known = declared(config_class)

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


# ---- The options of a run as text --------------------------------------------


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
                shared.setdefault(option.family, []).append(
                    f"{option.key}={text}"
                )
            elif isinstance(option.value, bool):
                lines.append(f"--{'' if option.value else 'no'}{option.name}")
            elif not option.family:
                lines.append(flagfiles.line_of(f"--{option.name}={text}"))
        lines += [
            flagfiles.line_of(f"--{name}={','.join(p)}")
            for name, p in shared.items()
        ]
    return "\n".join(lines) + "\n"


def record(config: Command) -> str:
    """Returns the text of a run's `config.flags`, for `read`.

    It is a flagfile, too; see `write`. Its last line shows that it is whole.
    """
    return flagfiles.record_of(write(config))


def read(config_class: type[Config], text: str, workdir: str) -> Config:
    """Parses what `record` returned, for a run at `workdir`.

    Raises:
      ValueError: if it is cut off, something else, of another format, or not
        valid.
    """
    flagfiles.check_record(text)
    words = [*flagfiles.flags_in(text), f"--workdir={workdir}"]
    return parse(config_class, words)
