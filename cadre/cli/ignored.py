"""Changes that a command would ignore, as an option of its own says the same: refused with that option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cadre.errors import ConfigError
from cadre.settings.yaml_file import settings_of


def refuse_ignored(overrides: Sequence[str], of: str, expected: Mapping[str, str]) -> None:
    """Raises ConfigError for `key=value` pairs whose key is in `expected`, which says what to set in its place; `of` is
    what would ignore them."""
    for pair in overrides:
        for key, setting in _set_by(pair):
            if setting in expected:
                raise ConfigError(
                    f"{key}: got it for {of}, which would ignore it; expected {expected[setting]}. Set that, or remove "
                    "it."
                )


def _set_by(pair: str) -> Iterator[tuple[str, str]]:
    """What a pair sets: the key as it is written and as the experiment knows it, of which a policy's own changes are a
    part. Sections of a training that are set whole name what they name for the training."""
    key = pair.partition("=")[0]
    section = settings_of([pair])[key] if key in ("evaluate", "train") else None
    for name in section if isinstance(section, dict) else ():
        yield f"{key}.{name}", f"{key}.{name}"
    parts = key.split(".")
    yield key, ".".join(parts[3:] if parts[:2] == ["team", "policies"] else parts)
