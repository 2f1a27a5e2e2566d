"""The cache's options, which several verbs have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.cache.config import SETTINGS_TABLE, resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from archsplit.cache.config import Settings

_DESTINATION = "cache_"


def add_cache_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting."""
    group = parser.add_argument_group("the compile cache", "also set by environment and file")
    for setting in SETTINGS_TABLE:
        group.add_argument(
            setting.flag,
            dest=_DESTINATION + setting.field,
            metavar=setting.field.upper(),
            help=setting.meaning.replace("`", ""),
        )


def given_settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """The settings: flags before environment before file.

    Raises:
        UsageError: one makes no sense.
    """
    flags = {
        setting.name: getattr(arguments, _DESTINATION + setting.field) for setting in SETTINGS_TABLE
    }
    given = {name: text for name, text in flags.items() if text is not None}
    return resolve(given, environment)


def cache_settings(
    arguments: argparse.Namespace, environment: Mapping[str, str]
) -> Settings | None:
    """The same, or None where there shall be no cache."""
    settings = given_settings(arguments, environment)
    return None if settings.mode == "off" else settings
