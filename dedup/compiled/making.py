"""How the library is made from kernels.c, and where it is.

What it is: `make`, for whoever builds the package; `LIBRARY`, `SOURCE` and `hash_of`, for whoever
loads it.
What it must not know: anything but the standard library: a build has nothing else.

Invariants:
    No compiler, one that fails, or a source tree that cannot be written is no error: there is no
    library then, and why is said.
    A library has its name only when it is whole, and an older one keeps it until then.
    It runs on every machine of this kind: it is made for no processor in particular.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.c")
LIBRARY = Path(__file__).with_name(
    "libkernels.dylib" if sys.platform == "darwin" else "libkernels.so"
)
#: A compiler that takes longer is stuck.
MAKING_SECONDS_MAX = 120


def hash_of(source: bytes) -> int:
    """Return what a library says of the source that it was made from."""
    return int.from_bytes(hashlib.sha256(source).digest()[:8], "big")


def make() -> str | None:
    """Make the library beside its source; return why there is none, if there is none."""
    why_not = _make()
    if why_not is not None:
        # Whoever cannot remove it has it made of another source, and unused, or of this one.
        with suppress(OSError):
            LIBRARY.unlink(missing_ok=True)
    return why_not


def _make() -> str | None:
    if sys.byteorder != "little":
        return "this machine's words are big-endian"
    unfinished = LIBRARY.with_name(f"{LIBRARY.name}.{os.getpid()}")
    compiler = os.environ.get("CC") or "cc"
    try:
        words = shlex.split(compiler)
    except ValueError as error:
        return f"CC is {compiler!r}: {error}"
    command = [
        *words,
        *("-std=gnu11", "-O3", "-fPIC", "-shared"),
        f"-DSOURCE_HASH={hash_of(SOURCE.read_bytes()):#x}u",
        *("-o", str(unfinished), str(SOURCE)),
    ]
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=MAKING_SECONDS_MAX)
        if done.returncode:
            # In whatever encoding: no word of it may end the build.
            said = done.stderr.decode(errors="replace").strip()
            return f"`{shlex.join(command)}` ended with {done.returncode}: {said}"
        unfinished.replace(LIBRARY)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"`{shlex.join(command)}`: {failure}"
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return None
