"""Where a config may send its reader: :mod:`memlint.files` says it for all readers."""

from __future__ import annotations

from memlint.files import inside as inside
from memlint.files import repository_root as repository_root
