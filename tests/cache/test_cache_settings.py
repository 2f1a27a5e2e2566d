"""Settings: their places have an order."""

from __future__ import annotations

from pathlib import Path

import pytest

from archsplit.cache.cache import Cache
from archsplit.cache.config import SETTINGS_TABLE, Settings, resolve_settings
from archsplit.cache.entry import CacheEntry, KeyComponent
from archsplit.errors import UsageError


def test_environment_goes_before_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "archsplit" / "cache.toml"
    file.parent.mkdir()
    file.write_text('max-size = "1K"\nsalt = "file"\nstrict = true\nlease = 3\n')
    environment = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_CACHE_HOME": "/cache",
        "ARCHSPLIT_CACHE_MAX_SIZE": "2M",
        "ARCHSPLIT_CACHE_SALT": "environment",
    }
    assert resolve_settings(environment) == Settings(
        folder=Path("/cache/archsplit"),
        max_size=2 * 10**6,
        salt="environment",
        strict=True,
        lease=3.0,
        is_folder_chosen=False,
    )


def test_all_settings_can_be_set_everywhere(tmp_path: Path) -> None:
    texts = {
        "mode": "read-only",
        "dir": "/store",
        "max-size": "1.5 GiB",
        "min-seconds": "2",
        "min-size": "4K",
        "strict": "yes",
        "salt": "s",
        "base-dir": "/project/",
        "lease": "0",
        "remote": "https://a/b s3://c/d",
        "remote-mode": "read-only",
        "remote-seconds": "1.5",
    }
    assert texts.keys() == {setting.name for setting in SETTINGS_TABLE}
    expected = Settings(
        mode="read-only",
        folder=Path("/store"),
        max_size=3 << 29,
        min_seconds=2.0,
        min_size=4000,
        strict=True,
        salt="s",
        base_dir="/project",
        lease=0.0,
        remote=("https://a/b", "s3://c/d"),
        remote_mode="read-only",
        remote_seconds=1.5,
    )
    file = tmp_path / "c.toml"
    lines = {name: f'"{text}"' for name, text in texts.items()}
    lines |= {"strict": "true", "remote": '["https://a/b", "s3://c/d"]', "lease": "0"}
    file.write_text("".join(f"{name} = {text}\n" for name, text in lines.items()))
    variables = {setting.variable: texts[setting.name] for setting in SETTINGS_TABLE}
    assert variables["ARCHSPLIT_CACHE"] == "read-only"
    assert variables["ARCHSPLIT_CACHE_DIR"] == "/store"
    assert resolve_settings(variables, mode="off") == expected._replace(mode="off")
    assert resolve_settings(variables) == expected
    assert resolve_settings({"ARCHSPLIT_CACHE_CONFIG": str(file)}) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mode", "maybe"),
        ("max-size", "big"),
        ("lease", "-1"),
        ("lease", "nan"),
        ("lease", "soon"),
        ("strict", "2"),
        ("base-dir", "../here"),
        ("base-dir", "/"),
    ],
)
def test_invalid_setting_is_refused_with_its_variable(name: str, text: str) -> None:
    setting = next(setting for setting in SETTINGS_TABLE if setting.name == name)
    with pytest.raises(UsageError, match=rf"^{setting.variable} is '{text}': not "):
        resolve_settings({setting.variable: text})


@pytest.mark.parametrize("text", ["not toml", 'nothing-known = "1"', 'mode = "maybe"'])
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"c\.toml"):
        resolve_settings({"ARCHSPLIT_CACHE_CONFIG": str(file)})


def test_named_settings_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't read"):
        resolve_settings({"ARCHSPLIT_CACHE_CONFIG": str(tmp_path / "none")})


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder without permission")
def test_the_usual_folder_may_be_closed_to_the_user_without_a_word() -> None:
    entry = CacheEntry(components=(KeyComponent("flag", "-O3"),), files={"k": b"1"}, cpu_seconds=1)

    def said_with(environment: dict[str, str]) -> list[str]:
        said: list[str] = []
        cache = Cache(resolve_settings(environment), warn=said.append)
        cache.store(entry)
        assert cache.find(entry.components) is None
        return said

    assert said_with({"HOME": "/sys"}) == []
    assert said_with({"XDG_CACHE_HOME": "/sys"}) == []
    named = said_with({"ARCHSPLIT_CACHE_DIR": "/sys/cache"})
    assert "/sys/cache can't be written" in named[0]


def test_the_table_in_the_manual_is_this_one() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "reference", "cache.md").read_text()
    rows = [line for line in page.splitlines() if "| `ARCHSPLIT_CACHE" in line]
    defaults = Settings(folder=Path("~/.cache/archsplit").expanduser())
    for setting, row in zip(SETTINGS_TABLE, rows, strict=True):
        cells = (setting.variable, setting.name)
        shown = " | ".join(f"`{cell}`" for cell in cells)
        start, _, default = row.removesuffix(" |").rpartition(" | ")
        assert start == f"| {shown} | {setting.description}"
        text = "" if default == "none" else default.strip("`")
        assert setting.parse(text) == getattr(defaults, setting.field)


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "Yes", "0", "false", "no", "off", ""])
def test_switch_has_four_words_for_each_state(word: str) -> None:
    is_on = word.lower() in {"1", "true", "yes", "on"}
    for environment in ({"ARCHSPLIT_CACHE_STRICT": word}, {"ARCHSPLIT_CACHE_STRICT": word.upper()}):
        assert resolve_settings(environment).strict is is_on
