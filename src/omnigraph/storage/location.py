"""Where a graph lives: one URI and the options that both obstore and Lance understand."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from omnigraph.errors import BadRequest

REMOTE_SCHEMES = frozenset({"s3", "s3a", "gs", "az"})
_FALSE = frozenset({"0", "false", "no", "off"})

# The usual variables, in the order in which the first one set wins.
_AWS_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "aws_access_key_id": ("AWS_ACCESS_KEY_ID",),
    "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "aws_session_token": ("AWS_SESSION_TOKEN",),
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "aws_endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "aws_virtual_hosted_style_request": ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",),
    "allow_http": ("AWS_ALLOW_HTTP",),
}
_SYNONYMS: Mapping[str, str] = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "aws_token": "aws_session_token",
    "region": "aws_region",
    "aws_default_region": "aws_region",
    "endpoint": "aws_endpoint",
    "endpoint_url": "aws_endpoint",
    "aws_endpoint_url": "aws_endpoint",
    "virtual_hosted_style_request": "aws_virtual_hosted_style_request",
    "aws_allow_http": "allow_http",
}
FSYNC_OPTION = "fsync"  # ours: "false" gives up durability across power cuts for speed
FSYNC_VARIABLE = "OMNIGRAPH_FSYNC"
PREALLOCATION_BLOCK = 4096  # bytes; an object of whole blocks is likely to be as long as the last one


@dataclass(frozen=True, slots=True)
class Location:
    """The root of one graph: everything it stores is below."""

    uri: str  # a plain absolute path for local disks, otherwise scheme://bucket/prefix
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # repr: they hold secrets
    fsync: bool = True

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    @property
    def path(self) -> Path:
        """The directory of a local root."""
        return Path(self.uri)

    @property
    def lists_in_name_order(self) -> bool:
        """Whether the store's LIST is sorted: not on local disks and S3 directory buckets."""
        return not self.is_local and not _is_directory_bucket(urlsplit(self.uri).netloc)

    @property
    def preallocates_files(self) -> bool:
        """Whether creating objects of equal length is faster, because files are preallocated: see `local.py`."""
        return self.fsync and self.is_local

    def child_uri(self, key: str) -> str:
        """The URI of an object below the root, as Lance takes it."""
        return f"{self.uri}/{key}"


def parse_location(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Location:
    """Parse a path or a `file://`, `s3://`, `gs://` or `az://` URI, and its options."""
    text = os.fspath(uri)
    given = {str(key).lower(): str(value) for key, value in (storage_options or {}).items()}
    fsync = given.pop(FSYNC_OPTION, environ.get(FSYNC_VARIABLE, "true")).lower() not in _FALSE
    if not text.strip():
        raise BadRequest("the store is empty: give a path or a URI such as s3://bucket/graph.")
    if "://" not in text:
        return _local(os.path.expanduser(text), given, fsync)
    parts = urlsplit(text)
    if parts.query or parts.fragment:
        raise BadRequest(
            f"{text} has a query or fragment: quote ? as %3F and # as %23, give settings as storage_options."
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise BadRequest(f"{text} names a host: a local store is file:///path or a plain path.")
        return _local(unquote(parts.path), given, fsync)
    if parts.scheme not in REMOTE_SCHEMES:
        raise BadRequest(f"{text} has the unknown scheme {parts.scheme!r}: use a path, file://, s3://, gs:// or az://.")
    if not parts.netloc:
        raise BadRequest(f"{text} names no bucket: write {parts.scheme}://bucket/prefix.")
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    root = f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    if scheme == "s3":
        given = _s3_options(given, environ)
        if _is_directory_bucket(parts.netloc) and "aws_endpoint" not in given:
            given.setdefault("aws_s3_express", "true")  # their own endpoints, and sessions instead of plain signatures
    return Location(root, given, fsync)


def _is_directory_bucket(bucket: str) -> bool:
    """S3 Express One Zone: AWS reserves this suffix for directory buckets."""
    return bucket.endswith("--x-s3")


def _local(path: str, given: Mapping[str, str], fsync: bool) -> Location:
    if given:
        raise BadRequest(f"A local store takes no option {next(iter(given))!r}: the only one is {FSYNC_OPTION!r}.")
    if "\0" in path:
        raise BadRequest(f"{path!r} can't be a path: it holds a NUL character.")
    return Location(os.path.abspath(path), {}, fsync)


def _s3_options(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The given options, completed from the environment; plain http is allowed for an http endpoint."""
    options = {_SYNONYMS.get(key, key): value for key, value in given.items()}
    for name, variables in _AWS_VARIABLES.items():
        found = next((environ[v] for v in variables if environ.get(v)), None)
        if found is not None:
            options.setdefault(name, found)
    if options.get("aws_endpoint", "").startswith("http://"):
        options.setdefault("allow_http", "true")
    return options
