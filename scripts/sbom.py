"""Writes the software bill of materials: what Steep's binaries link or contain (CycloneDX 1.6).

usage: python scripts/sbom.py FILE [FOLDER]

FOLDER receives the texts of the parts' licences, as their packages have them. Versions are those
of the packages that a build on this machine uses: Python's, Debian's. Equal packages make equal
files: no time, no serial number.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Part:
    """A component: its name in NOTICE, the package that it comes from, how it gets in."""

    name: str
    package: str  # "pypi:NAME" or "deb:NAME"
    licence: str  # SPDX
    use: str
    inside: str = ""  # the part that brings it along


JPEG_LICENCE = "IJG AND BSD-3-Clause AND Zlib"

PARTS = (
    Part("ONNX", "pypi:onnx", "Apache-2.0", "compiled in"),
    Part("Protocol Buffers", "deb:libprotobuf-dev", "BSD-3-Clause", "shared library, shipped"),
    Part("oneDNN", "pypi:onednn-devel-cpu-gomp", "Apache-2.0", "shared library, shipped"),
    Part("Highway", "deb:libhwy-dev", "Apache-2.0", "shared library, shipped"),
    Part("{fmt}", "deb:libfmt-dev", "MIT", "shared library, shipped"),
    Part("JSON for Modern C++", "deb:nlohmann-json3-dev", "MIT", "compiled in"),
    Part("CLI11", "deb:libcli11-dev", "BSD-3-Clause", "compiled in"),
    Part("nanobind", "pypi:nanobind", "BSD-3-Clause", "compiled in"),
    Part("tsl::robin_map", "", "MIT", "compiled in", inside="nanobind"),
    Part("zlib", "deb:zlib1g-dev", "Zlib", "shared library"),
    Part("libjpeg-turbo", "deb:libjpeg62-turbo-dev", JPEG_LICENCE, "shared library, shipped"),
    Part("libpng", "deb:libpng-dev", "libpng-2.0", "shared library, shipped"),
    Part(
        "libgomp", "deb:libgomp1", "GPL-3.0-only WITH GCC-exception-3.1", "shared library, shipped"
    ),
    Part("libstdc++", "deb:libstdc++6", "GPL-3.0-only WITH GCC-exception-3.1", "shared library"),
)


def version_of(package: str) -> str | None:
    """The installed version; None where the machine does not say."""
    kind, _, name = package.partition(":")
    if kind == "pypi":
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None
    if kind == "deb":
        command = ["dpkg-query", "-W", "-f", "${Version}", name]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return answer.stdout.strip() or None
    return None


# Where packages keep what their copyright notes only name, and what is no licence file by its name.
COMMON = Path("/usr/share/common-licenses")
LICENCE_FILES = re.compile(r"licen[cs]e|copying|notice|third-party-programs", re.IGNORECASE)


def licence_files(part: Part) -> list[Path]:
    """The files of a part's package that say under which terms it may be passed on."""
    kind, _, name = part.package.partition(":")
    if kind == "pypi":
        files = importlib.metadata.distribution(name).files or []
        matches = [f for f in files if LICENCE_FILES.match(f.name) and f.suffix in ("", ".txt")]
        # oneDNN's are in the package of its library, which the one of its headers needs
        if not matches and "-devel" in name:
            return licence_files(replace(part, package=part.package.replace("-devel", "")))
        return [Path(str(f.locate())) for f in matches]
    if kind == "deb":
        copyright_note = Path("/usr/share/doc", name, "copyright")
        gpl = [COMMON / "GPL-3"] if part.licence.startswith("GPL-3") else []
        return [f for f in [copyright_note, *gpl] if f.is_file()]
    return []


def write_licences(folder: Path) -> None:
    """Copy the texts of all parts into folders of their names."""
    for part in PARTS:
        if part.inside:  # NOTICE has its text
            continue
        files = licence_files(part)
        if not files:
            print(f"note: no licence file of {part.name} on this machine; NOTICE has its terms")
        for file in files:
            into = folder / re.sub(r"[^\w.+-]+", "_", part.name).strip("_")
            into.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, into / file.name)


def component(part: Part) -> dict[str, Any]:
    """One entry of the bill."""
    kind, _, name = part.package.partition(":")
    expression = " " in part.licence
    licence = {"expression": part.licence} if expression else {"license": {"id": part.licence}}
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": part.name,
        "name": part.name,
        "licenses": [licence],
        "properties": [{"name": "steep:use", "value": part.use}],
    }
    if part.inside:
        entry["properties"].append({"name": "steep:part-of", "value": part.inside})
    version = version_of(part.package)
    if version is not None:
        entry["version"] = version
        where = "pypi" if kind == "pypi" else "deb/debian"
        quoted = version.replace("+", "%2B").replace(":", "%3A")
        entry["purl"] = f"pkg:{where}/{name.replace('+', '%2B')}@{quoted}"
    return entry


def own_version() -> str:
    """As pyproject.toml has it (Python 3.10 has no tomllib)."""
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if line.startswith("version = "):
            return line.split('"')[1]
    raise SystemExit("pyproject.toml names no version")


def bill() -> dict[str, Any]:
    """The whole document."""
    own = {"type": "library", "bom-ref": "steep", "name": "steep", "version": own_version()}
    own["purl"] = f"pkg:pypi/steep@{own['version']}"
    direct = sorted(p.name for p in PARTS if not p.inside)
    parts_of = {p.inside: [p.name] for p in PARTS if p.inside}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**own, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": [component(p) for p in PARTS],
        "dependencies": [
            {"ref": "steep", "dependsOn": direct},
            *({"ref": ref, "dependsOn": parts} for ref, parts in parts_of.items()),
        ],
    }


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    Path(sys.argv[1]).write_text(json.dumps(bill(), indent=2) + "\n")
    if len(sys.argv) == 3:
        write_licences(Path(sys.argv[2]))
