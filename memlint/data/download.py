"""One model's ``config.json`` from the hub: the only module that asks the network, for ``memlint models add`` alone.

Plain HTTPS, as huggingface_hub asks for it: ``$HF_ENDPOINT/ID/resolve/REVISION/config.json`` with ``HF_TOKEN``. What
comes back is JSON of bounded size, is read as any ``config.json`` is, and nothing of it is run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.parse import quote, urlsplit

from memlint import __version__
from memlint.data import hub
from memlint.named_tuple import NamedTuple

ENDPOINT = "https://huggingface.co"
SILENCE_SECONDS = 10.0  # that a server may be silent
TOTAL_SECONDS = 30.0  # for the whole file, however slowly it comes
_CHUNK_BYTES = 2**16
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class NotFetched(Exception):
    """There is no ``config.json`` to keep; the message says why, and what may help."""


class Fetched(NamedTuple):
    """A file that is kept.

    path      where
    commit    the revision's commit, where the server says it; else ""
    resolved  what it describes
    """

    path: str
    commit: str
    resolved: hub.Resolved


def add(name: str, revision: str = "main") -> Fetched:
    """Fetch the ``config.json`` of an id, and keep it where checks look for it. Raises NotFetched."""
    if not hub.is_id(name):
        raise NotFetched(f"{name!r} is no id of a model: ids are NAME or ORGANISATION/NAME")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise NotFetched("HF_HUB_OFFLINE is set, so that nothing is fetched")
    address = f"{_endpoint()}/{name}/resolve/{quote(revision, safe='')}/{hub.CONFIG}"
    content, commit = _get(address, name, revision)
    resolved = hub.parsed(content, address, hub.ADDED)
    if resolved.reason:
        raise NotFetched(resolved.reason)
    return Fetched(_keep(content, hub.added_path(name)), commit, resolved)


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
        raise NotFetched(f"HF_ENDPOINT {endpoint!r} is no address of a server (https://...)")
    return endpoint


def _get(address: str, name: str, revision: str) -> tuple[bytes, str]:
    """(the file, its commit)."""
    headers = {"User-Agent": f"memlint/{__version__}"}
    token = os.environ.get("HF_TOKEN", "").strip()
    if token and _keeps_secrets(address):
        headers["Authorization"] = f"Bearer {token}"
    end = time.monotonic() + TOTAL_SECONDS
    try:
        opener = urllib.request.build_opener(_Redirects)
        with opener.open(urllib.request.Request(address, headers=headers), timeout=SILENCE_SECONDS) as answer:
            content = b""
            while chunk := answer.read1(_CHUNK_BYTES):
                content += chunk
                if len(content) > hub.MAX_BYTES:
                    raise NotFetched(f"{address}: larger than {hub.MAX_BYTES // 2**20} MiB, which no {hub.CONFIG} is")
                if time.monotonic() > end:
                    raise NotFetched(f"{address}: not there within {TOTAL_SECONDS:.0f} s")
            return content, answer.headers.get("X-Repo-Commit", "")
    except urllib.error.HTTPError as error:
        error.close()
        raise NotFetched(_refused(address, name, revision, error.code, bool(token))) from None
    except (OSError, HTTPException, ValueError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NotFetched(f"{address}: {why or type(error).__name__}") from None


def _refused(address: str, name: str, revision: str, code: int, has_token: bool) -> str:
    if code in (401, 403):
        access = "with this HF_TOKEN there is no access" if has_token else "HF_TOKEN is not set"
        return f"{address}: {code}: {name} is gated, private or not there, and {access}"
    if code == 404:
        return f"{address}: 404: there is no {name}, no revision {revision!r} of it, or no {hub.CONFIG} in it"
    return f"{address}: the server answers {code}"


def _keeps_secrets(address: str) -> bool:
    """Whether a token may be sent there: nobody on the way reads it."""
    parts = urlsplit(address)
    return parts.scheme == "https" or parts.hostname in _LOOPBACK


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows what the hub answers for models that were renamed, and takes a token nowhere else."""

    max_redirections = 5

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if before.scheme == "https" and after.scheme != "https":
            raise NotFetched(f"{req.full_url}: is redirected to {newurl}, which is not asked")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            request.remove_header("Authorization")
        return request


def _keep(content: bytes, path: str) -> str:
    """Written beside its place and moved there, so that it is whole or absent."""
    folder = os.path.dirname(path)
    temporary = ""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            temporary = file.name
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise NotFetched(f"{path}: not written: {error.strerror or error}") from None
    return path
