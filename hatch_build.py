"""What the build backend does besides copying files: it makes the library of dedup/compiled.

A wheel with the library is one of this platform; without a compiler it is one for all, and arrays do
the work.
"""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling looks for under this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Make the library, and say what the wheel is then."""
        if self.target_name != "wheel":
            return
        made = runpy.run_path(str(Path(self.root) / "dedup" / "compiled" / "making.py"))
        why_not = made["make"]()
        if why_not is not None:
            self.app.display_warning(f"arrays do the work of dedup/compiled: {why_not}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(str(made["LIBRARY"].relative_to(self.root)))
