"""Private keys in their file, and where a runner finds them.

A key file has one key a line, `dataflowd-key-v1 <suite> <keyid> <protection> <base64>`; lines that start with # are
comments. The protection is `plain`, or `scrypt:<cost>:<salt>`: then the key is encrypted with a passphrase. Only the
owner of the file may read it. During a rotation it holds several keys; a sealed value names the key that it needs.

A KeySource says where the keys are. It is made of settings, so the daemon passes it to a runner without reading a key.
"""

from __future__ import annotations

import base64
import os
import secrets
import stat
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dataflowd.host import private, seal
from dataflowd.model.errors import InvalidCredentialError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dataflowd.host.settings import Settings

FORMAT = "dataflowd-key-v1"
NOTE = "# dataflowd: private keys, one a line. Whoever reads this file can open every sealed password.\n"
CREDENTIAL = "dataflowd.key"
PASSPHRASE_CREDENTIAL = "dataflowd.passphrase"  # noqa: S105 - the name of a file
KEY_FILE_BYTES = 64 * 1024
COMMAND_SECONDS = 30
SCRYPT_COST = 16  # 2^16 blocks of 1 KiB: 64 MiB, a fifth of a second
SCRYPT_COST_MOST = 20
SALT_BYTES = 16
NONCE_BYTES = 12
WORDS = 5  # of a line
OTHERS = stat.S_IRWXG | stat.S_IRWXO
REMEDY = "let it belong to the user who runs the jobs, or to root where runner_user is set, with mode 0600"

Ring = dict[str, seal.PrivateKey]


@dataclass(frozen=True)
class KeySource:
    """Where the keys are: key_file, else key_command, else systemd's credential, else the default file."""

    key_file: str | None = None
    key_command: tuple[str, ...] = ()
    credentials: str | None = None
    default: str | None = None
    passphrase_file: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> KeySource:
        return cls(
            key_file=str(settings.key_file) if settings.key_file else None,
            key_command=tuple(settings.key_command),
            credentials=os.environ.get("CREDENTIALS_DIRECTORY"),
            default=str(settings.data_dir / "key"),
            passphrase_file=str(settings.passphrase_file) if settings.passphrase_file else None,
        )

    @classmethod
    def parse(cls, document: dict[str, Any]) -> KeySource:
        return cls(**document | {"key_command": tuple(document["key_command"])})

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def file(self) -> Path | None:
        """The file of the keys, also for a new key. None: a command prints the keys."""
        if self.key_file:
            return Path(self.key_file)
        if self.key_command:
            return None
        if self.credentials and (Path(self.credentials) / CREDENTIAL).exists():
            return Path(self.credentials) / CREDENTIAL
        return Path(self.default) if self.default else None

    def ring(self, ask: Callable[[], str] | None = None) -> Ring:
        """Every key of the source. If no file holds the passphrase, `ask` is called for it."""
        path = self.file
        if path is None:
            text, origin = _from_command(self.key_command), f"the key command {self.key_command[0]}"
        else:
            text, origin = _from_file(path, self.forbidden_mode(path)), f"the key file {path}"
        return parse(text, origin, lambda: self.passphrase(ask))

    def keyids(self) -> list[str]:
        """The ids of the keys in the file; a passphrase does not hide them. Empty if a command prints the keys."""
        path = self.file
        if path is None or not path.exists():
            return []
        text = _from_file(path, self.forbidden_mode(path))
        lines = [line.split() for line in text.splitlines() if line.startswith(FORMAT)]
        return [words[2] for words in lines if len(words) == WORDS]

    def mark(self) -> tuple[int, ...]:
        """Identifies this version of the key file without reading it: a rotation writes the file and changes the mark."""
        path = self.file
        try:
            found = path.stat() if path is not None else None
        except OSError:
            found = None
        return () if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)

    @property
    def passphrase_path(self) -> Path | None:
        """The file of the passphrase: the setting, else systemd's credential, which need not exist."""
        if self.passphrase_file:
            return Path(self.passphrase_file)
        return Path(self.credentials) / PASSPHRASE_CREDENTIAL if self.credentials else None

    def passphrase(self, ask: Callable[[], str] | None = None) -> str:
        path = self.passphrase_path
        if path is not None and (self.passphrase_file or path.exists()):
            return _from_file(path, self.forbidden_mode(path)).removesuffix("\n")
        if ask is not None:
            return ask()
        raise InvalidCredentialError(
            "the key is protected by a passphrase, and none is given",
            f"put it into a file of mode 0600 and name that in DATAFLOW_PASSPHRASE_FILE, or load it as the systemd credential {PASSPHRASE_CREDENTIAL}",
        )

    def forbidden_mode(self, path: Path) -> int:
        """The mode bits that a key's or a passphrase's file must not have.

        systemd's directory protects a credential. Its mode may show group rights, which stand for an access list.
        """
        is_credential = self.credentials is not None and path.parent == Path(self.credentials)
        return stat.S_IRWXO if is_credential else OTHERS


def parse(text: str, origin: str, passphrase: Callable[[], str]) -> Ring:
    """The keys by their ids. `passphrase` is called at most once, and only if a key needs it."""
    ring: Ring = {}
    known: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != WORDS or words[0] != FORMAT or words[1] not in seal.SUITES:
            raise _damaged(origin, number)
        _, suite, keyid, protection, data = words
        if protection != "plain" and not known:
            known.append(passphrase())
        try:
            raw = base64.b64decode(data, validate=True)
            raw = raw if protection == "plain" else _decrypted(raw, words[:4], known[0], origin)
            key = seal.PrivateKey(suite, raw)
            if key.public.keyid != keyid:
                raise _damaged(origin, number)
        except ValueError:
            raise _damaged(origin, number) from None
        ring[keyid] = key
    if not ring:
        raise InvalidCredentialError(f"{origin} holds no key", "make one with `dataflowctl key generate`")
    return ring


def line(key: seal.PrivateKey, passphrase: str | None = None) -> str:
    """The line of a key file for this key."""
    head = [FORMAT, key.suite, key.public.keyid, "plain"]
    data = key.raw
    if passphrase is not None:
        salt = secrets.token_bytes(SALT_BYTES)
        head[3] = f"scrypt:{SCRYPT_COST}:{base64.b64encode(salt).decode()}"
        nonce = secrets.token_bytes(NONCE_BYTES)
        box = ChaCha20Poly1305(_stretched(passphrase, salt, SCRYPT_COST))
        data = nonce + box.encrypt(nonce, data, " ".join(head).encode())
    return " ".join((*head, base64.b64encode(data).decode())) + "\n"


def add(path: Path, lines: Iterable[str]) -> None:
    """Appends the lines to the file, or makes the file. A crash leaves the old file or the new one, never a part."""
    before = _from_file(path) if path.exists() else NOTE
    private.make_passage(path.parent)
    private.replace_file(path, before + "".join(lines))


def _stretched(passphrase: str, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=1 << cost, r=8, p=1).derive(passphrase.encode())


def _decrypted(data: bytes, head: list[str], passphrase: str, origin: str) -> bytes:
    kind, cost, salt = head[3].split(":")
    if kind != "scrypt" or int(cost) > SCRYPT_COST_MOST:
        raise ValueError(head[3])
    box = ChaCha20Poly1305(_stretched(passphrase, base64.b64decode(salt, validate=True), int(cost)))
    try:
        return box.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], " ".join(head).encode())
    except InvalidTag:
        raise InvalidCredentialError(
            f"the passphrase does not open {origin}", "give the one that the key was made with"
        ) from None


def _from_file(path: Path, forbidden_mode: int = OTHERS) -> str:
    """Raises InvalidCredentialError if other users can read the file."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mode & forbidden_mode:
                raise InvalidCredentialError(
                    f"{path} is readable by others (mode {stat.S_IMODE(found.st_mode):04o})",
                    f"run chmod 600 {path}, and replace what it holds if somebody may have read it",
                )
            if found.st_uid not in {0, os.geteuid()}:
                raise InvalidCredentialError(f"{path} belongs to another user", REMEDY)
            return file.read(KEY_FILE_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise InvalidCredentialError(
            f"{path} does not exist",
            "make a key with `dataflowctl key generate`, or bring the one that the passwords were sealed with",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCredentialError(f"{path} cannot be read: {error}", REMEDY) from None


def _from_command(words: tuple[str, ...]) -> str:
    """The command prints the keys to stdout. Its stderr goes to the attempt's log."""
    try:
        done = subprocess.run(  # noqa: S603 - the settings of this host name it; there is no shell
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=COMMAND_SECONDS, check=True
        )
        return done.stdout[:KEY_FILE_BYTES].decode("ascii")
    except subprocess.TimeoutExpired:
        why = f"did not answer within {COMMAND_SECONDS} s"
    except subprocess.CalledProcessError as error:
        why = f"ended with status {error.returncode}"
    except OSError as error:
        why = f"cannot be run: {error.strerror}"
    except UnicodeDecodeError:
        why = "did not print a key"
    raise InvalidCredentialError(
        f"the key command {words[0]} {why}", "run it by hand as the user who runs the jobs"
    )


def _damaged(origin: str, number: int) -> InvalidCredentialError:
    return InvalidCredentialError(f"{origin} is damaged in line {number}", "restore it from a copy")
