"""How the library is made from kernels.c, and where it is.

What it is: `make`, for whoever builds the package; `LIBRARY`, `SOURCE` and `hash_of`, for whoever
loads it.
What it must not know: anything but the standard library: a build has nothing else.

Invariants:
    No compiler, or one that fails, is no error: there is no library then, and why is said.
    A library has its name only when it is whole.
    It runs on every machine of this kind: it is made for no processor in particular.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
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
    LIBRARY.unlink(missing_ok=True)
    if sys.byteorder != "little":
        return "this machine's words are big-endian"
    unfinished = LIBRARY.with_name(f"{LIBRARY.name}.{os.getpid()}")
    command = [
        *shlex.split(os.environ.get("CC", "cc")),
        *("-std=gnu11", "-O3", "-fPIC", "-shared"),
        f"-DSOURCE_HASH={hash_of(SOURCE.read_bytes()):#x}u",
        *("-o", str(unfinished), str(SOURCE)),
    ]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=MAKING_SECONDS_MAX
        )
        if done.returncode:
            return f"`{shlex.join(command)}` ended with {done.returncode}: {done.stderr.strip()}"
        unfinished.replace(LIBRARY)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"`{shlex.join(command)}`: {failure}"
    finally:
        unfinished.unlink(missing_ok=True)
    return None
