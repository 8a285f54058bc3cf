"""Settings: the environment (`DATAFLOW_*`), then a TOML file, then defaults. Each is documented once, here.

`load` also returns where every value came from, which `dataflowd config` prints.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from dataflowd.errors import InvalidSettingsError
from dataflowd.nearest import did_you_mean

ENV_PREFIX = "DATAFLOW_"
CONFIG_VARIABLE = "DATAFLOW_CONFIG"
SYSTEM_CONFIG = Path("/etc/dataflowd/config.toml")


def default_data_dir() -> Path:
    """Root's home is closed to the unprivileged account that Postgres insists on, so root uses the system's place."""
    if os.geteuid() == 0:
        return Path("/var/lib/dataflowd")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "dataflowd"


def user_config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "dataflowd" / "config.toml"


class Settings(BaseSettings):
    """Every setting; its description is its documentation."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid")

    dsn: SecretStr | None = Field(
        None, description="Postgres 15 or newer to use; without it an embedded Postgres is started on demand"
    )
    data_dir: Path = Field(
        default_factory=default_data_dir, description="what dataflowd keeps on this host: embedded Postgres, logs"
    )
    root: str = Field("", description="what {root} in a location stands for; default <data_dir>/data")
    allowed_roots: list[str] = Field(
        default_factory=list, description="locations outside these are refused; default: root alone"
    )
    environment: str = Field("dev", description="which environment this host works for; datasets may be bound to one")
    flows: list[Path] = Field(default_factory=list, description="flow files whose jobs this host runs")
    java_home: Path | None = Field(
        None, description="Java 17 or newer to use; default JAVA_HOME, then java on PATH, then the embedded one"
    )
    master: str = Field("local[*]", description="Spark master: local[*], spark://, yarn, k8s:// or sc://")
    connect_timeout: int = Field(10, ge=1, description="seconds to wait for a database connection")
    statement_timeout: int = Field(60, ge=1, description="seconds a single database call may take")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: readable on a terminal, JSON elsewhere"
    )

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @property
    def effective_root(self) -> str:
        return self.root or str(self.data_dir / "data")

    @property
    def effective_allowed_roots(self) -> list[str]:
        return self.allowed_roots or [self.effective_root]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment outranks what `load` passes in from the files."""
        return env_settings, init_settings


@dataclass(frozen=True)
class Loaded:
    settings: Settings
    origins: dict[str, str]


def load(config: Path | None = None) -> Loaded:
    files = _config_files(config)
    origins = dict.fromkeys(Settings.model_fields, "default")
    values: dict[str, Any] = {}
    for path in files:
        found = _read_toml(path)
        values |= found
        origins |= dict.fromkeys(found, str(path))
    try:
        settings = Settings(**values)
        from_env = EnvSettingsSource(Settings)()
    except ValidationError as error:
        raise InvalidSettingsError(_explain(error, files), "run `dataflowd config --help` for the list of settings") from None
    except Exception as error:
        if type(error).__name__ != "SettingsError":
            raise
        raise InvalidSettingsError(
            f"the environment: {error}", "lists are written as JSON: DATAFLOW_FLOWS='[\"flow.toml\"]'"
        ) from None
    origins |= {name: f"environment {ENV_PREFIX}{name.upper()}" for name in from_env if name in origins}
    return Loaded(settings, origins)


def _config_files(config: Path | None) -> list[Path]:
    """An explicit file stands alone; otherwise the user's file outranks the system's."""
    chosen = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if chosen is not None:
        if not chosen.is_file():
            raise InvalidSettingsError(f"settings file {chosen} does not exist", "correct --config or DATAFLOW_CONFIG")
        return [chosen]
    return [path for path in (SYSTEM_CONFIG, user_config()) if path.is_file()]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettingsError(f"{path} is not valid TOML: {error}", "correct the line that is named") from None
    except OSError as error:
        raise InvalidSettingsError(f"{path} cannot be read: {error.strerror}", "check its permissions") from None
    unknown = [key for key in values if key not in Settings.model_fields]
    if unknown:
        raise InvalidSettingsError(
            f"{path}: unknown setting " + ", ".join(f"{key!r}{did_you_mean(key, Settings.model_fields)}" for key in unknown),
            "run `dataflowd config` for the list of settings",
        )
    return values


def _explain(error: ValidationError, files: list[Path]) -> str:
    where = ", ".join(map(str, files)) or "environment"
    parts = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return f"invalid settings ({where}): " + "; ".join(parts)
