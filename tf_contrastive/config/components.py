"""Declarations of components, and the options that hold the chosen ones.

A component, such as a loss or an optimizer, is declared once, without
TensorFlow: a dataclass whose fields are its options (see `fields.option`) and
what only Python sets (`fields.argument`), with its name and its traits as class
variables. The class that computes inherits from it. Other modules do not
compare names: they ask for traits.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from tf_contrastive.base import errors
from tf_contrastive.config import checks, fields

C = TypeVar("C", bound="Component")


@dataclasses.dataclass(kw_only=True, eq=False)
class Component:
    """Base of declarations.

    Attributes:
      name: of the component.
      implementation: module of the class that computes, which has the name of
        the declaration; or `module:name`.
      is_own: whether it is a part of the user's own, `module:name`.
      given: options of a run's component that were set, not left at defaults,
        with their values; also those of other members of its family, where it
        ignores them.
    """

    name: ClassVar[str]
    implementation: ClassVar[str]
    is_own: ClassVar[bool] = False
    given: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        check(type(self), vars(self))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, field.name) == getattr(other, field.name)
            for field in dataclasses.fields(self)
        )

    def __hash__(self) -> int:
        return hash(type(self))

    @property
    def label(self) -> str:
        """The name by which it is chosen."""
        return self.name

    @classmethod
    def declared(cls) -> dict[str, dataclasses.Field]:
        """Returns the declarations of its arguments, which are its options.

        And of those that only Python sets.
        """
        found = {field.name: field for field in dataclasses.fields(cls)}
        return {name: x for name, x in found.items() if "help" in x.metadata}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Returns the arguments with their defaults."""
        return {name: x.default for name, x in cls.declared().items()}

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments with their values."""
        return {name: getattr(self, name) for name in self.declared()}

    def with_options(self: C, **options: Any) -> C:
        """Returns a copy with options set, and those of others noted."""
        own = {n: x for n, x in options.items() if n in self.declared()}
        changed = dataclasses.replace(self, **own)
        vars(changed)["given"] = {**self.given, **options}
        return changed

    def with_defaults(self: C, **defaults: Any) -> C:
        """Returns a copy in which all options are given, if need be `defaults`.

        Those of other components are left out.
        """
        known = self.arguments()
        further = defaults.keys() & known.keys() - self.given.keys()
        return self.with_options(
            **known | {name: defaults[name] for name in further}
        )


def check(member: type[Component], values: Mapping[str, Any]) -> None:
    """Raises `UserError` for a value that an argument does not allow.

    Values that are not arguments of the member are left out, as is None.
    """
    for name, field in member.declared().items():
        if values.get(name) is not None:
            fields.validate(name, field, values[name])


def by_name(members: Iterable[type[C]]) -> dict[str, type[C]]:
    """Returns name -> member, for a family of declarations or classes."""
    return {member.name: member for member in members}


def implementation(member: type[Component]) -> Any:
    """Returns what computes a declared component."""
    module, _, name = member.implementation.partition(":")
    return getattr(importlib.import_module(module), name or member.__name__)


def implementations(members: Mapping[str, type[Component]]) -> dict[str, Any]:
    """Returns name -> what computes, for a family of declarations."""
    return {name: implementation(member) for name, member in members.items()}


def pick(
    kind: str, name: str, members: Mapping[str, Any], arguments: Iterable[str]
) -> Any:
    """Returns a member of a family, which must have the arguments.

    Raises:
      UserError: for an unknown name or argument.
    """
    if name not in members:
        raise errors.unknown(kind, name, members)
    known = members[name].defaults()
    for argument in arguments:
        if argument not in known:
            raise errors.unknown(f"option of {name}", argument, known)
    return members[name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """How a component of a family is chosen among the options of a command.

    Attributes:
      kind: the option that names the member.
      members: the declarations, by name.
      help: one line for the option `kind`.
      declare: name -> component with its defaults, if there are more than
        `members`, such as parts of the user's own, `module:name`.
      check: of such a name, if it is not `module:name`.
      flags: options with a flag of their own. The others are given by their
        names in one flag, KIND_options.
      prefixed: options that are named KIND_OPTION among those of a command,
        since OPTION alone says too little there.
      defaults: member -> defaults here that differ from its own.
      without: options that only Python sets here.
      ignores_others: whether options that only other members have are kept for
        them, and no error.
    """

    kind: str
    members: Mapping[str, type[Component]]
    help: str
    declare: Callable[[str], Component] | None = None
    check: checks.Check | None = None
    flags: Collection[str] = ()
    prefixed: Collection[str] = ()
    defaults: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    without: Collection[str] = ()
    ignores_others: bool = False

    def option(self, default: Component) -> Any:
        """Returns a dataclass field that holds the chosen member."""
        about = {"components": self, "identity": True}
        return dataclasses.field(default=default, metadata=about)

    @functools.cached_property
    def named(self) -> dataclasses.Field:
        """The declaration of the option `kind`."""
        named = fields.option(
            dataclasses.MISSING,
            self.help,
            choices=() if self.check else self.members,
            check=self.check,
            own=self.declare is not None,
        )
        named.name, named.type = self.kind, str
        return named

    def of(self, member: Any) -> dict[str, dataclasses.Field]:
        """Returns the options of a member here, without what Python sets."""
        return {
            name: field
            for name, field in member.declared().items()
            if field.metadata["has_flag"] and name not in self.without
        }

    @functools.cached_property
    def declared(self) -> dict[str, dataclasses.Field]:
        """The options of all members; of the first one that has it."""
        declared: dict[str, dataclasses.Field] = {}
        for member in self.members.values():
            declared = declared | self.of(member) | declared
        return declared

    def takers(self, option: str) -> dict[str, type[Component]]:
        """Returns the members that have an option, by name."""
        return {n: m for n, m in self.members.items() if option in self.of(m)}

    def option_name(self, key: str, field: dataclasses.Field) -> str:
        """Returns the name of an option among those of a command."""
        # Those of the user's own parts, which have no help, may be any words.
        alone = key in self.declared and field.metadata["help"]
        return (
            key if alone and key not in self.prefixed else f"{self.kind}_{key}"
        )

    def options(
        self, chosen: Component, every: bool = False
    ) -> Iterator[fields.Option]:
        """Yields the option `kind`, and the options of the chosen component.

        `every`: of all members instead, as None.
        """
        named = self.named
        yield fields.Option(
            self.kind, chosen.label, named, self.help, of_component=True
        )
        values = {**chosen.given, **chosen.arguments()}
        declared = self.declared
        if not every:
            own = self.of(chosen)
            others = chosen.given.keys() - own.keys()
            declared = own | {k: x for k, x in declared.items() if k in others}
        for key, field in declared.items():
            help = field.metadata["help"]
            if every and "auto:" not in help:
                help += f"; auto: {self._described_default(key)}"
            yield fields.Option(
                self.option_name(key, field),
                None if every else values[key],
                field,
                help,
                # Those of the user's own parts have no help.
                family=""
                if key in self.flags and help
                else f"{self.kind}_options",
                of_component=True,
            )

    def _described_default(self, option: str) -> str:
        """Describes an option's defaults, and of which members they are."""
        takers: dict[str, list[str]] = {}
        for name, member in self.takers(option).items():
            here = {**member.defaults(), **self.defaults.get(name, {})}
            takers.setdefault(fields.written(here[option]), []).append(name)
        return ", ".join(
            default if len(names) > 4 else f"{default} ({', '.join(names)})"
            for default, names in takers.items()
        )

    def replaced(
        self, chosen: Component, unused: dict[str, Any], prefix: str
    ) -> Component:
        """Returns the component that `unused` options choose; they are removed.

        Raises:
          UserError: for an unknown name, a part of the user's own that is not
            allowed or cannot be used, a value that is not allowed, or an option
            that the component does not have.
        """
        name = unused.pop(prefix + self.kind, chosen)
        options: dict[str, Any] = {}
        if isinstance(name, Component):
            chosen = name
        elif name != chosen.label:
            given = chosen.given.items()
            options = {k: x for k, x in given if k in self.declared}
            fields.validate(prefix + self.kind, self.named, name)
            if self.declare:
                chosen = self.declare(name)
            else:
                chosen = self.members[name](**self.defaults.get(name, {}))
        known = self._named(self.of(chosen))
        for named, (key, field) in (self._named(self.declared) | known).items():
            value = unused.pop(prefix + named, None)
            if value in (None, fields.AUTO):
                continue
            options[key] = fields.read(prefix + named, field, value)
            if named not in known and not self.ignores_others:
                raise errors.UserError(
                    f"{errors.arg(prefix + named)} is not an option of"
                    f" {errors.arg(prefix + self.kind, chosen.label)}, only of"
                    f" {', '.join(self.takers(key))}: leave it out, or set"
                    f" {errors.arg(prefix + named, fields.AUTO)}"
                )
        if not self.ignores_others:
            own = self.of(chosen)
            options = {k: x for k, x in options.items() if k in own}
        return chosen.with_options(**options) if options else chosen

    def _named(
        self, declared: Mapping[str, dataclasses.Field]
    ) -> dict[str, tuple[str, dataclasses.Field]]:
        """Returns name among a command's options -> name here, declaration."""
        return {
            self.option_name(key, field): (key, field)
            for key, field in declared.items()
        }
