"""Private keys at rest, and where the process that becomes a job finds them.

A key file has one key a line, `dataflowd-key-v1 <suite> <keyid> <protection> <base64>`; lines that start with # are
for people. The protection is `plain`, or `scrypt:<cost>:<salt>`: then the key is encrypted with a passphrase. The file
must be its user's alone. It holds several keys while one replaces another; a sealed value says which it needs.

A KeySource says where to look: it is made of settings, so it can be handed on without the key being read.
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
REMEDY = "let it belong to the user who runs the jobs, or to root where runner_user is set, with mode 0600"

Ring = dict[str, seal.PrivateKey]


@dataclass(frozen=True)
class KeySource:
    """The first of key_file, key_command, systemd's credential and the default file that is given."""

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
        """Where the keys are, and where a new one is written; None: a command gives them."""
        if self.key_file:
            return Path(self.key_file)
        if self.key_command:
            return None
        if self.credentials and (Path(self.credentials) / CREDENTIAL).exists():
            return Path(self.credentials) / CREDENTIAL
        return Path(self.default) if self.default else None

    def ring(self, ask: Callable[[], str] | None = None) -> Ring:
        """Every key of the source. `ask`: who to ask for a passphrase that no file holds."""
        path = self.file
        if path is None:
            text, origin = _from_command(self.key_command), f"the key command {self.key_command[0]}"
        else:
            text, origin = _from_file(path, is_credential=self._is_credential(path)), f"the key file {path}"
        return parse(text, origin, lambda: self.passphrase(ask))

    def keyids(self) -> list[str]:
        """The ids of the keys in the file, which no passphrase hides; none where a command gives the keys."""
        path = self.file
        if path is None or not path.exists():
            return []
        text = _from_file(path, is_credential=self._is_credential(path))
        lines = [line.split() for line in text.splitlines() if line.startswith(FORMAT)]
        return [words[2] for words in lines if len(words) == WORDS]

    def mark(self) -> tuple[int, ...]:
        """Another one when the file was written again, as a rotation does. It is not read for that."""
        path = self.file
        try:
            found = path.stat() if path is not None else None
        except OSError:
            found = None
        return () if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)

    def passphrase(self, ask: Callable[[], str] | None = None) -> str:
        beside = Path(self.credentials) / PASSPHRASE_CREDENTIAL if self.credentials else None
        path = Path(self.passphrase_file) if self.passphrase_file else beside
        if path is not None and (self.passphrase_file or path.exists()):
            return _from_file(path, is_credential=path == beside).removesuffix("\n")
        if ask is not None:
            return ask()
        raise InvalidCredentialError(
            "the key is protected by a passphrase, and none is given",
            f"put it into a file of mode 0600 and name that in DATAFLOW_PASSPHRASE_FILE, or load it as the systemd credential {PASSPHRASE_CREDENTIAL}",
        )

    def _is_credential(self, path: Path) -> bool:
        return self.credentials is not None and path.parent == Path(self.credentials)


def parse(text: str, origin: str, passphrase: Callable[[], str]) -> Ring:
    """The keys by their ids; the passphrase is asked for once, and only if a key needs it."""
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
    """A key as it stands in its file."""
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
    """Appends to the file, or makes it; after a crash it is as before or as after."""
    before = _from_file(path, is_credential=False) if path.exists() else NOTE
    private.passage(path.parent)
    replace(path, before + "".join(lines))


def replace(path: Path, text: str) -> None:
    """Puts a new file (0600) in the place of an old one; a link of that name is replaced, and not followed."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


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


def _from_file(path: Path, *, is_credential: bool) -> str:
    """Others are kept from a credential by systemd's directory; its mode may show an access list as a group's rights."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            forbidden = stat.S_IRWXO if is_credential else stat.S_IRWXG | stat.S_IRWXO
            if found.st_mode & forbidden:
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
    """What it prints is the key; what it says on stderr is for the attempt's log."""
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
