"""Declarations of components, and the options that hold the chosen ones.

A component, such as a loss, is declared once, without TensorFlow: a dataclass
whose fields are its options (`fields.option`) and what only Python sets
(`fields.argument`), with its name and traits as class variables. The class that
computes inherits from it. Other modules ask for traits, not for names.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from typing_extensions import dataclass_transform

from tf_contrastive.base import errors
from tf_contrastive.config import checks, fields

C = TypeVar("C", bound="Component")


@dataclass_transform(kw_only_default=True)
@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class Component:
    """Base of declarations; those of this package become dataclasses.

    Attributes:
      implementation: module of the class that computes, which has the name of
        the declaration; or `module:name`.
      is_own: whether it is a part of the user's own, `module:name`.
      given: the options of a run that were set, with their values; also other
        members', where its family ignores them.
    """

    name: ClassVar[str]
    implementation: ClassVar[str]
    is_own: ClassVar[bool] = False
    given: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith(f"{__package__}."):
            dataclasses.dataclass(kw_only=True, unsafe_hash=True)(cls)

    def __post_init__(self) -> None:
        for name, value in self.arguments().items():
            if value is not None:
                fields.validate(name, self.declared()[name], value)

    @property
    def label(self) -> str:
        """The name by which it is chosen."""
        return self.name

    @classmethod
    def declared(cls) -> dict[str, dataclasses.Field]:
        """Returns the declarations of its options, and what Python sets."""
        return {
            field.name: field
            for field in dataclasses.fields(cls)
            if "help" in field.metadata
        }

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
        """Returns a copy in which all its options are given.

        Those that were not get `defaults`, or stay.
        """
        own = self.arguments()
        new = {n: x for n, x in defaults.items() if n in own}
        return self.with_options(**{**own, **new, **self.given})


def by_name(members: Iterable[type[C]]) -> dict[str, type[C]]:
    """Returns name -> member, for a family of declarations."""
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
    """Returns a member of a family; an unknown name or argument is an error."""
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
        `members`, such as parts of the user's own.
      check: of such a name, if it is not `module:name`.
      flags: options with a flag of their own. Others share KIND_options.
      prefixed: options that are named KIND_OPTION in a command.
      defaults: member -> defaults here that differ from its own.
      without: options that only Python sets here.
      ignores_others: whether options of other members are kept, not refused.
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
        return fields.option(
            default,
            self.help,
            choices=() if self.check else self.members,
            check=self.check,
            own=self.declare is not None,
            components=self,
        )

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

    def takers(self, option: str) -> dict[str, Any]:
        """Returns the members that have an option: name -> its default here."""
        return {
            name: {**member.defaults(), **self.defaults.get(name, {})}[option]
            for name, member in self.members.items()
            if option in self.of(member)
        }

    def options(
        self, field: dataclasses.Field, chosen: Component, every: bool
    ) -> Iterator[fields.Option]:
        """Yields the option `kind`, and the options of the chosen component.

        `field` is what `option` returned. `every`: of all members, as None.
        """
        yield fields.Option(self.kind, chosen.label, field, component=self)
        values = {} if every else {**chosen.given, **chosen.arguments()}
        own = {} if every else self.of(chosen)
        for key, option in (own | self.declared | own).items():
            if every or key in values:
                yield fields.Option(
                    self.name_of(key),
                    values.get(key),
                    option,
                    "" if key in self.flags else f"{self.kind}_options",
                    self,
                )

    def name_of(self, key: str) -> str:
        """Returns the name of an option among those of a command."""
        is_alone = key in self.declared and key not in self.prefixed
        return key if is_alone else f"{self.kind}_{key}"

    def replaced(
        self,
        named: dataclasses.Field,
        chosen: Component,
        values: dict[str, Any],
        prefix: str,
    ) -> Component:
        """Returns the component that `values` choose; they lose its options."""
        name = values.pop(prefix + self.kind, chosen.label)
        given: dict[str, Any] = {}
        if name != chosen.label:
            given = dict(chosen.given)
            fields.validate(prefix + self.kind, named, name)
            if self.declare:
                chosen = self.declare(name)
            else:
                chosen = self.members[name](**self.defaults.get(name, {}))
        own = self.of(chosen)
        for key, field in (self.declared | own).items():
            option = prefix + self.name_of(key)
            value = values.pop(option, None)
            if value in (None, fields.AUTO):
                continue
            if key not in own and not self.ignores_others:
                raise errors.UserError(
                    f"{errors.arg(option)} is not an option of"
                    f" {errors.arg(prefix + self.kind, chosen.label)}, only of"
                    f" {', '.join(self.takers(key))}: leave it out, or set"
                    f" {errors.arg(option, fields.AUTO)}"
                )
            given[key] = fields.read(option, field, value)
        if not self.ignores_others:
            given = {key: x for key, x in given.items() if key in own}
        return chosen.with_options(**given)
