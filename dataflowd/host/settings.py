"""Settings: the environment (`DATAFLOW_*`), then a TOML file, then defaults. Each is documented once, here.

`load` also returns where every value came from, which `dataflowd config` prints. A relative path in a file is relative
to that file, a relative path in the environment to the working directory. Lists in the environment are JSON, or separated by
commas. A mistyped name is refused in files and in the environment, because a setting that silently keeps its default is
noticed too late.

`Settings` is frozen. A daemon keeps its settings in `Current`, and a reload replaces them there by one assignment. Settings
whose field is marked NEEDS_RESTART keep their value until the daemon restarts: `FIXED` names them, `reloaded` keeps them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, TypeAdapter, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from dataflowd.host import withheld
from dataflowd.model.errors import InvalidSettingsError
from dataflowd.model.identifiers import NAME
from dataflowd.model.masking import mask
from dataflowd.model.suggest import did_you_mean

if TYPE_CHECKING:
    from pydantic.config import JsonDict

ENV_PREFIX = "DATAFLOW_"
CONFIG_VARIABLE = "DATAFLOW_CONFIG"
SYSTEM_CONFIG = Path("/etc/dataflowd/config.toml")
ROOT_DATA_DIR = Path("/var/lib/dataflowd")
PATHS = (
    "data_dir",
    "root",
    "allowed_roots",
    "flows",
    "java_home",
    "class_archives",
    "log_dir",
    "key_file",
    "passphrase_file",
)
# The daemon gave this value to the database, or to those who watch the daemon, when it started.
NEEDS_RESTART: JsonDict = {"needs_restart": True}


def default_data_dir() -> Path:
    """Returns the default of data_dir. Root uses a system directory: Postgres does not run as root, and other users cannot enter
    root's home.
    """
    if os.geteuid() == 0:
        return ROOT_DATA_DIR
    base = _user_dir("XDG_DATA_HOME", ".local/share")
    if base is None:
        raise InvalidSettingsError(
            "this user has no home directory", "set DATAFLOW_DATA_DIR to a directory of its own"
        )
    return base / "dataflowd"


def user_config() -> Path | None:
    base = _user_dir("XDG_CONFIG_HOME", ".config")
    return base / "dataflowd" / "config.toml" if base else None


def host_as_name(hostname: str) -> str:
    """Makes a host's name a name that the database accepts: it starts with a letter and has only letters, digits, _ . and -."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", hostname)
    return (name if name[:1].isalpha() else f"host-{name}")[:63]


def _user_dir(variable: str, under_home: str) -> Path | None:
    """Returns None for an account without a home directory, as in containers."""
    if os.environ.get(variable):
        return Path(os.environ[variable])
    try:
        return Path.home() / under_home
    except RuntimeError:
        return None


def _as_list(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [item.strip() for item in value.split(",") if item.strip()]


class Settings(BaseSettings):
    """Every setting. The description of a field is its documentation."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    dsn: SecretStr | None = Field(
        None,
        description="Postgres 15 or newer to use; without it an embedded Postgres is started on demand",
        json_schema_extra=NEEDS_RESTART,
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="directory for what dataflowd keeps on this host: embedded Postgres, data, logs; "
        "default /var/lib/dataflowd for root, ~/.local/share/dataflowd for others",
        json_schema_extra=NEEDS_RESTART,
    )
    root: str = Field("", description="what {root} in a location stands for; default <data_dir>/data")
    allowed_roots: Annotated[list[str], NoDecode, BeforeValidator(_as_list)] = Field(
        default_factory=list,
        description="further directories, beside root, where data may be; other locations are refused",
    )
    allowed_hosts: Annotated[list[str], NoDecode, BeforeValidator(_as_list)] = Field(
        default_factory=list,
        description="hosts, or host:port, that datasets of any format may name; default: localhost alone",
    )
    environment: str = Field(
        "dev",
        description="which environment this host works for; a dataset of another environment is neither read nor written here",
        json_schema_extra=NEEDS_RESTART,
    )
    production: bool = Field(
        default=False,
        description="whether the environment is production, where `dataflowctl force` needs --i-know",
    )
    flows: Annotated[list[Path], NoDecode, BeforeValidator(_as_list)] = Field(
        default_factory=list, description="flow files whose jobs this host runs"
    )
    java_home: Path | None = Field(
        None,
        description="Java 17 or newer to use; default JAVA_HOME, then java on PATH, then the embedded Java",
    )
    class_archives: Path | None = Field(
        None,
        description="directory of the archives that a daemon makes to load Spark's classes faster; "
        "default <data_dir>/classes",
    )
    master: str = Field("local[*]", description="Spark master: local[*], spark://, yarn, k8s:// or sc://")
    runners: int = Field(
        0,
        ge=0,
        description="Spark applications at a time; 0: as many as the limit (concurrency) needs, up to max_runners; "
        "each takes about 700 MB",
    )
    max_runners: int = Field(
        0,
        ge=0,
        description="most Spark applications if runners is 0; 0: as many as fit into four fifths of the memory, each "
        "with spark.driver.memory (1g) plus 400 MB",
    )
    slots: int = Field(
        2,
        ge=1,
        description="chunks side by side in one Spark application, if the job has no slots of its own",
    )
    reuse: int = Field(
        200,
        ge=1,
        description="attempts of one Spark application, if the job has no reuse of its own; 1: a spark-submit for each",
    )
    runner_age: int = Field(3600, ge=1, description="seconds after which a Spark application is replaced")
    runner_idle: int = Field(
        300, ge=1, description="seconds after which an idle Spark application is stopped"
    )
    runner_silence: int = Field(
        60, ge=5, description="seconds without an answer after which a Spark application is killed"
    )
    connect_timeout: int = Field(10, ge=1, description="seconds to wait for a database connection")
    statement_timeout: int = Field(
        60, ge=1, description="seconds a single database call may take", json_schema_extra=NEEDS_RESTART
    )
    daemon_name: str = Field(
        "",
        pattern=f"^({NAME.pattern})?$",
        description="name of the daemon in the database, one process at a time; default: the host's name",
        json_schema_extra=NEEDS_RESTART,
    )
    engine: Literal["spark", "process", "noop"] = Field(
        "spark",
        description="what executes attempts; spark: every kind of job; process: command jobs only; noop: nothing is executed",
        json_schema_extra=NEEDS_RESTART,
    )
    lease: int = Field(
        60,
        ge=3,
        description="seconds after which a silent daemon's attempts may be given to others",
        json_schema_extra=NEEDS_RESTART,
    )
    poll: float = Field(
        30,
        gt=0,
        description="seconds, plus or minus a fifth, between two searches for work that no notification announced",
    )
    drain_timeout: float = Field(
        300,
        ge=0,
        description="seconds that a stopping daemon lets its attempts go on before it gives them back",
    )
    gc_interval: int = Field(
        3600,
        ge=0,
        description="seconds between two runs of gc, which removes directories that nobody needs; 0: none",
    )
    gc_grace: int = Field(
        86400,
        ge=0,
        description="seconds for which the directory of an attempt that published nothing is kept after its end",
    )
    gc_retention: int = Field(
        604800,
        ge=0,
        description="seconds for which a version of a chunk is kept after the next version was published",
    )
    http_host: str = Field(
        "127.0.0.1", description="address of /health and /metrics", json_schema_extra=NEEDS_RESTART
    )
    http_port: int = Field(
        8470,
        ge=0,
        le=65535,
        description="port of /health and /metrics; 0: none",
        json_schema_extra=NEEDS_RESTART,
    )
    key_file: Path | None = Field(
        None,
        description="file of the private keys that open sealed passwords, mode 0600; default: the output of key_command, "
        "else the systemd credential dataflowd.key, else <data_dir>/key",
    )
    key_command: Annotated[list[str], NoDecode, BeforeValidator(_as_list)] = Field(
        default_factory=list, description="program and arguments that print the private keys, without a shell"
    )
    passphrase_file: Path | None = Field(
        None,
        description="file of the keys' passphrase, mode 0600; default: the systemd credential dataflowd.passphrase",
    )
    trusted_keys: Annotated[list[str], NoDecode, BeforeValidator(_as_list)] = Field(
        default_factory=list,
        description="ids of the keys that this host seals passwords with; default: for each user the first key used, "
        "which is stored in known_keys beside the user's configuration",
    )
    cleartext_hosts: Annotated[list[str], NoDecode, BeforeValidator(_as_list)] = Field(
        default_factory=list,
        description="hosts, or host:port, whose Postgres may ask for a table's password in clear text, over verified TLS; "
        "default: none",
    )
    runner_user: str = Field(
        "",
        description="Unix user that runs the jobs, instead of the daemon's own user; needs a daemon that runs as root; "
        "this user must own neither data_dir nor the database nor the key",
    )
    log_dir: Path | None = Field(
        None, description="where the output of attempts is kept; default <data_dir>/log"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level that is logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto",
        description="auto: readable text on a terminal, JSON elsewhere; json: always JSON; console: always readable text",
    )

    @field_validator("data_dir", "java_home", "class_archives", "log_dir", "key_file", "passphrase_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value and value.expanduser().absolute()

    @field_validator("flows")
    @classmethod
    def _all_absolute(cls, value: list[Path]) -> list[Path]:
        return [path.expanduser().absolute() for path in value]

    @property
    def effective_root(self) -> str:
        return self.root or str(self.data_dir / "data")

    @property
    def effective_allowed_roots(self) -> list[str]:
        return list(dict.fromkeys([self.effective_root, *self.allowed_roots]))

    @property
    def effective_allowed_hosts(self) -> list[str]:
        return self.allowed_hosts or ["localhost"]

    @property
    def effective_log_dir(self) -> Path:
        return self.log_dir or self.data_dir / "log"

    @property
    def effective_class_archives(self) -> Path:
        return self.class_archives or self.data_dir / "classes"

    @property
    def effective_daemon_name(self) -> str:
        return self.daemon_name or host_as_name(socket.gethostname())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment overrides the values that `load` passes in from the files."""
        return env_settings, init_settings


FIXED = tuple(
    name for name, field in Settings.model_fields.items() if field.json_schema_extra == NEEDS_RESTART
)


@dataclass
class Current:
    """The settings of a running daemon. A reload assigns new settings, which every holder of this object then sees."""

    settings: Settings


@dataclass(frozen=True)
class Loaded:
    settings: Settings
    origins: dict[str, str]


@dataclass(frozen=True)
class Described:
    """A setting as a person reads it: secrets masked, derived defaults filled in."""

    name: str
    value: Any
    origin: str
    description: str


def load(config: Path | None = None) -> Loaded:
    origins = dict.fromkeys(Settings.model_fields, "default")
    values: dict[str, Any] = {}
    for path in _config_files(config):
        found, lines = _read_toml(path)
        values |= found
        origins |= {name: f"{path}:{lines[name]}" for name in found}
    origins |= _from_environment()
    values |= {
        _setting(name): value
        for name, value in withheld.variables().items()
        if _setting(name) in Settings.model_fields and value
    }
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _invalid(error, origins) from None
    return Loaded(settings, origins)


def replaced(settings: Settings, name: str, value: str) -> Settings:
    """Returns the settings with one value from the command line. Raises pydantic's ValidationError."""
    form: TypeAdapter[Any] = TypeAdapter(Settings.model_fields[name].rebuild_annotation())
    return settings.model_copy(update={name: form.validate_python(value)})


def reloaded(current: Settings, fresh: Settings) -> tuple[Settings, list[str]]:
    """Returns the settings that apply after a reload, and the names of changed settings that need a restart to apply."""
    waiting = [name for name in FIXED if getattr(fresh, name) != getattr(current, name)]
    return fresh.model_copy(update={name: getattr(current, name) for name in waiting}), waiting


def description(name: str) -> str:
    """What a setting means, and whether a change of it needs a restart."""
    meaning = Settings.model_fields[name].description or ""
    return f"{meaning}; a change needs a restart" if name in FIXED else meaning


def describe(loaded: Loaded) -> list[Described]:
    settings = loaded.settings
    shown: dict[str, Any] = settings.model_dump(mode="json") | {
        "dsn": mask(settings.dsn.get_secret_value()) if settings.dsn else None,
        "master": mask(settings.master),
        "root": settings.effective_root,
        "allowed_roots": settings.effective_allowed_roots,
        "allowed_hosts": settings.effective_allowed_hosts,
        "daemon_name": settings.effective_daemon_name,
        "log_dir": str(settings.effective_log_dir),
    }
    return [
        Described(name, shown[name], loaded.origins[name], description(name))
        for name in Settings.model_fields
    ]


def _config_files(config: Path | None) -> list[Path]:
    """Returns the files to read, the most important last. An explicit file is read alone, without the user's and the system's."""
    chosen = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if chosen is None:
        return [path for path in (SYSTEM_CONFIG, user_config()) if path is not None and os.path.lexists(path)]
    if not os.path.lexists(chosen):
        named_by = "--config" if config else CONFIG_VARIABLE
        raise InvalidSettingsError(
            f"settings file {chosen} does not exist", f"correct {named_by}, or create the file"
        )
    return [chosen]


def _read_toml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a settings file and the line of each."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettingsError(
            f"{path} is not valid TOML: {error}", "correct the file at this place"
        ) from None
    except OSError as error:
        raise InvalidSettingsError(
            f"settings file {path} cannot be read: {error.strerror}", "name a file that this user may read"
        ) from None
    lines = {key: _line_of(key, text) for key in values}
    unknown = [key for key in values if key not in Settings.model_fields]
    if unknown:
        raise InvalidSettingsError(
            "; ".join(
                f"{path}:{lines[key]}: unknown setting {key!r}{did_you_mean(key, Settings.model_fields)}"
                for key in unknown
            ),
            f"use one of {', '.join(Settings.model_fields)}",
        )
    return {key: _anchored(key, value, path.parent) for key, value in values.items()}, lines


def _line_of(key: str, text: str) -> int:
    assignment = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[=.\]]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if assignment.match(line)), 1)


def _anchored(key: str, value: Any, directory: Path) -> Any:
    """Makes a path in a file relative to that file, not to the working directory. URLs (s3a://...) stay as they are."""
    if key not in PATHS:
        return value
    if isinstance(value, list):
        return [_anchored(key, item, directory) for item in value]
    if not isinstance(value, str) or not value or "://" in value:
        return value
    return str(directory.absolute() / Path(value).expanduser())


def _from_environment() -> dict[str, str]:
    """Returns the settings that the environment gives, with the variable of each. A name that resembles a setting is an error."""
    variables = {
        _setting(name): name
        for name, value in (os.environ | withheld.variables()).items()
        if name.upper().startswith(ENV_PREFIX) and value
    }
    # Variables that resemble no setting belong to other programs.
    mistyped = [
        f"{variable}{did_you_mean(name, Settings.model_fields)}"
        for name, variable in variables.items()
        if name not in Settings.model_fields and did_you_mean(name, Settings.model_fields)
    ]
    if mistyped:
        raise InvalidSettingsError(
            f"unknown setting in the environment: {', '.join(mistyped)}",
            "correct the variable's name, or unset it",
        )
    return {
        name: f"environment {variable}"
        for name, variable in variables.items()
        if name in Settings.model_fields
    }


def _setting(variable: str) -> str:
    return variable.upper().removeprefix(ENV_PREFIX).lower()


def _invalid(error: ValidationError, origins: dict[str, str]) -> InvalidSettingsError:
    """Makes an error of pydantic's messages and the place of each value; never of the value, which may be a secret."""
    wrong = {
        str(item["loc"][0]): item["msg"] for item in error.errors(include_input=False, include_url=False)
    }
    return InvalidSettingsError(
        "; ".join(f"{origins.get(name, 'settings')}: {name}: {message}" for name, message in wrong.items()),
        "; ".join(
            f"{name} is {Settings.model_fields[name].description}"
            for name in wrong
            if name in Settings.model_fields
        ),
    )
