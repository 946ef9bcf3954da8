"""S3, Google Cloud Storage and Azure through obstore, without retries of its own.

A retry inside the library would be invisible to the meter, and would turn the answer to our own lost put into "exists".
`object_store.py` retries what may be repeated.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from omnigraph.errors import AccessDenied, BadRequest, NotFound
from omnigraph.storage.location import Location
from omnigraph.storage.objects.object_store import ETag, ObjectInfo, PutOutcome, PutResult, StoredObject, TransientError
from omnigraph.storage.util.fork_guard import OBJECT_STORES

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.store import RetryConfig

_NOISE = re.compile(r"^Generic \w+ error: | in [\d.]+(?:ns|µs|ms|s)\b")
_CONFIG_PREFIXES = ("aws_", "google_", "azure_")
_CLIENT_KEYS = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "pool_idle_timeout", "proxy_url", "timeout"}
)
_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
PAGE_ROWS = 1000
_NO_RETRIES: "RetryConfig" = {"max_retries": 0}
_PAGE_RETRIES: "RetryConfig" = {"max_retries": 6}


class CloudBackend:
    def __init__(self, location: Location) -> None:
        self._bucket = urlsplit(location.uri).netloc
        self._location = location
        self._connection = _connect(location, _NO_RETRIES)

    @property
    def _store(self) -> Any:
        OBJECT_STORES.check()
        return self._connection

    def get(self, key: str) -> StoredObject | None:
        try:
            result = obstore.get(self._store, key)
            meta = result.meta
            return StoredObject(bytes(result.bytes()), meta["last_modified"], ETag(meta["e_tag"], meta["version"]))
        except (OSError, BaseError) as error:
            self._raise_unless_missing(key, error)
            return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        try:
            return bytes(obstore.get_range(self._store, key, start=start, length=length))
        except (OSError, BaseError) as error:
            self._raise_unless_missing(key, error)
            return None

    def head(self, key: str) -> ObjectInfo | None:
        try:
            return _object_info(obstore.head(self._store, key))
        except (OSError, BaseError) as error:
            self._raise_unless_missing(key, error)
            return None

    def create(self, key: str, data: bytes) -> PutResult:
        try:
            obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError) as error:
            return PutResult(PutOutcome.EXISTS, _summary(error))
        except (OSError, BaseError) as error:
            raise self._translate(key, error) from error
        return PutResult(PutOutcome.CREATED)

    def put(self, key: str, data: bytes, durable: bool) -> ETag | None:
        try:
            answer = obstore.put(self._store, key, data, use_multipart=False)
        except (OSError, BaseError) as error:
            raise self._translate(key, error) from error
        return ETag(answer["e_tag"], answer["version"])

    def replace(self, key: str, data: bytes, seen: ETag) -> bool:
        mode: UpdateVersion = {}
        if seen.etag is not None:
            mode["e_tag"] = seen.etag
        if seen.version is not None:
            mode["version"] = seen.version
        try:
            obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        except PreconditionError:
            return False
        except (OSError, BaseError) as error:
            self._raise_unless_missing(key, error)
            return False
        return True

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except (OSError, BaseError) as error:
            self._raise_unless_missing(key, error)

    def pages(self, prefix: str, *, repeat_pages: bool) -> Iterator[Sequence[ObjectInfo]]:
        """The pages of a listing, continued by the store's own token.

        A chunk shorter than a full page is the last; requesting another would cost a request. A failed page ends
        obstore's stream, so a long listing might never complete on a busy store: with `repeat_pages` the library
        retries single pages itself, and the meter does not see those retries.
        """
        store = _connect(self._location, _PAGE_RETRIES) if repeat_pages else self._store
        try:
            chunks = iter(obstore.list(store, prefix or None, chunk_size=PAGE_ROWS))
            while True:
                chunk = next(chunks, [])
                yield [_object_info(meta) for meta in chunk]
                if len(chunk) < PAGE_ROWS:
                    return
        except (OSError, BaseError) as error:
            raise self._translate(prefix, error) from error

    def _raise_unless_missing(self, key: str, error: Exception) -> None:
        if isinstance(error, FileNotFoundError) and not any(sign in str(error) for sign in _NO_BUCKET):
            return
        raise self._translate(key, error) from error

    def _translate(self, key: str, error: Exception) -> Exception:
        text = str(error)
        if any(sign in text for sign in _NO_BUCKET):
            return NotFound(
                f"The bucket {self._bucket!r} does not exist: create it, or check the URI and the endpoint."
            )
        status = _STATUS.search(text)
        if isinstance(error, PermissionError | PermissionDeniedError | UnauthenticatedError) or (
            status and status[1] in ("401", "403")
        ):
            return AccessDenied(f"{self._bucket}/{key}", _summary(error))
        passing = status is None or status[1] in ("408", "409", "429") or "RequestTimeout" in text
        if status and status[1].startswith("4") and not passing:
            return BadRequest(
                f"The store refused {self._bucket}/{key} ({_summary(error)}): check the store's settings."
            )
        return TransientError(_summary(error))


def _connect(location: Location, retries: "RetryConfig") -> Any:
    config, client = _split_options(location.options)
    scheme = urlsplit(location.uri).scheme
    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    try:
        return kinds[scheme].from_url(location.uri, config=config, client_options=client, retry_config=retries)
    except UnknownConfigurationKeyError as error:
        raise BadRequest(f"{_summary(error).rstrip('.')}: correct or remove it in storage_options.") from error
    except BaseError as error:
        raise BadRequest(f"{location.uri} can't be used as a store: {_summary(error)}.") from error


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Options of the store and of its HTTP client; any other name is a mistake of the caller."""
    config = {key: value for key, value in options.items() if key.startswith(_CONFIG_PREFIXES)}
    client: dict[str, Any] = {key: options[key] for key in _CLIENT_KEYS & options.keys()}
    unknown = sorted(options.keys() - config.keys() - client.keys())
    if unknown:
        raise BadRequest(f"storage_options has the unknown key {unknown[0]!r}: use names such as aws_endpoint.")
    for key in ("allow_http", "allow_invalid_certificates"):
        if key in client:
            client[key] = str(client[key]).lower() in ("1", "true", "yes", "on")
    return config, client


def _object_info(meta: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"], meta["e_tag"])


def _summary(error: Exception) -> str:
    """The first line of a library's message, without internals and timings."""
    return _NOISE.sub("", str(error).split("\n", 1)[0]).strip()[:300]
