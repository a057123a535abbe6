#!/usr/bin/env python3
"""Builds the wheel for this machine: python3 python/wheel.py [--out dist] [--version 1.2.3] [--arch amd64]. It is also what pip runs to build one.

Each has the package, the program (static, so that one wheel is for glibc and musl), the licenses of all that is linked into it, and
a list of that (CycloneDX). The same commit and tools give the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python/batchfs"
TAGS = {  # platform tags of wheels, keyed by GOARCH
    "amd64": ["manylinux2014_x86_64", "manylinux_2_17_x86_64", "musllinux_1_1_x86_64"],
    "arm64": ["manylinux2014_aarch64", "manylinux_2_17_aarch64", "musllinux_1_1_aarch64"],
}
LICENSE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|PATENTS|UNLICENSE)([.-].*)?", re.IGNORECASE)


def run(*command: str, **env: str) -> str:
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def go(arch: str, *command: str) -> str:
    """Runs a go command as the Makefile does, whatever the settings of the user are, but for another architecture."""
    (tags,) = re.findall(r"^BUILD_TAGS = (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return run("go", *command, GOOS="linux", GOARCH=arch, CGO_ENABLED="0", GOFLAGS=f"-tags={tags}")


def version_of_commit() -> str:
    """Returns the tag of this commit, or a development version that names it."""
    try:
        described = run("git", "describe", "--tags", "--always", "--dirty=.dirty", "--match", "v[0-9]*")
    except (OSError, subprocess.CalledProcessError):
        return "0.dev0"  # the source came without git
    if re.fullmatch(r"v\d+(\.\d+)*", described):
        return described[1:]
    return "0.dev0+g" + described.rpartition("-g")[2]


def build(arch: str, version: str, out: Path) -> dict[str, Any]:
    """Builds the program and returns what Go says of it: its modules and its toolchain."""
    flags = ["-v", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w -X main.stamped={version}"]
    go(arch, "build", *flags, "-o", str(out), "./cmd/batchfs")
    return json.loads(run("go", "version", "-m", "-json", str(out)))


def licenses(arch: str) -> dict[str, bytes]:
    """Returns the licenses of the packages that are linked, by module: those beside a package, and those above it in its module."""
    found = {"LICENSE": (ROOT / "LICENSE").read_bytes()}
    goroot = run("go", "env", "GOROOT")
    form = "{{.Dir}}\t{{if .Module}}{{.Module.Path}}@{{.Module.Version}}\t{{.Module.Dir}}{{end}}"
    for line in go(arch, "list", "-deps", "-f", form, "./cmd/batchfs").splitlines():
        package, _, module = line.partition("\t")
        name, _, top = module.partition("\t")
        if Path(top) == ROOT:
            continue
        if not name:  # the standard library
            name, package, top = "go", goroot, goroot
        directory = Path(package)
        while directory.is_relative_to(top):
            for file in [*directory.iterdir(), *directory.glob("licenses/*")]:
                if file.is_file() and (LICENSE.fullmatch(file.name) or file.parent != directory):
                    found[f"{name}/{file.relative_to(top)}"] = file.read_bytes()
            directory = directory.parent
    return found


def bill_of_materials(version: str, built: dict[str, Any]) -> bytes:
    """Returns the CycloneDX list of the modules in the program."""

    def component(kind: str, path: str, version: str, sum: str = "") -> dict[str, Any]:
        purl = f"pkg:golang/{path.lower()}@{version.replace('+', '%2B')}"
        properties = {"properties": [{"name": "go:sum", "value": sum}]} if sum else {}
        return {"type": kind, "bom-ref": purl, "name": path, "version": version, "purl": purl, **properties}

    modules = [component("library", m["Path"], m["Version"], m["Sum"]) for m in (d.get("Replace") or d for d in built["Deps"])]
    program = component("application", "batchfs", version)
    std = component("library", "std", built["GoVersion"].removeprefix("go"))
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": program},
        "components": [*modules, std],
        "dependencies": [{"ref": program["bom-ref"], "dependsOn": [m["bom-ref"] for m in [*modules, std]]}],
    }
    return json.dumps(bom, indent=1).encode()


def metadata(version: str, license_files: list[str]) -> bytes:
    summary, _, text = (ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text())) or "").partition("\n\n")
    fields = [
        "Metadata-Version: 2.4",
        "Name: batchfs",
        f"Version: {version}",
        f"Summary: {summary}",
        "License-Expression: MIT",
        *(f"License-File: {name}" for name in license_files),
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Go",
        "Classifier: Programming Language :: Python :: 3",
        "Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Classifier: Typing :: Typed",
        "Requires-Python: >=3.10",
        "Requires-Dist: numpy>=1.21",
        "Description-Content-Type: text/plain",
    ]
    return "\n".join([*fields, "", text, ""]).encode()


def wheel(arch: str, version: str, out: Path) -> Path:
    """Writes the wheel of an architecture and returns its path."""
    print(f"building batchfs {version} for {arch}: go prints each package that it compiles, up to 500", file=sys.stderr)
    program = out / f"batchfs-{arch}"
    built = build(arch, version, program)
    info, tags = f"batchfs-{version}.dist-info", TAGS[arch]
    files = {f"batchfs/{path.name}": path.read_bytes() for path in PACKAGE.iterdir() if path.is_file()}
    script = f"batchfs-{version}.data/scripts/batchfs"
    files[script] = program.read_bytes()
    program.unlink()
    linked = licenses(arch)
    files.update({f"{info}/licenses/{name}": text for name, text in linked.items()})
    files[f"{info}/METADATA"] = metadata(version, sorted(linked))
    files[f"{info}/sboms/batchfs.cdx.json"] = bill_of_materials(version, built)
    head = "Wheel-Version: 1.0\nGenerator: batchfs\nRoot-Is-Purelib: false\n"
    files[f"{info}/WHEEL"] = (head + "".join(f"Tag: py3-none-{tag}\n" for tag in tags)).encode()
    record = [f"{name},sha256={hash_of(data)},{len(data)}" for name, data in sorted(files.items())]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    path = out / f"batchfs-{version}-py3-none-{'.'.join(tags)}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda name: (name.endswith("/RECORD"), name)):
            entry = zipfile.ZipInfo(name)  # dated 1980, so that builds are reproducible
            entry.create_system = 3  # Unix, which has permissions
            entry.external_attr = (0o100755 if name == script else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return path


def hash_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def check_go() -> None:
    """Ends the program unless Go can build batchfs."""
    if subprocess.run([ROOT / ".ci/go"], check=False).returncode:
        sys.exit(1)


def this_machine() -> str:
    """Returns the architecture of this machine."""
    arch = run("go", "env", "GOARCH")
    if arch not in TAGS:
        sys.exit(f"there are no wheels for {arch}, only for {', '.join(TAGS)}")
    return arch


def build_wheel(directory: str, _settings: object = None, _metadata: object = None) -> str:
    """Builds the wheel for this machine, for ``pip install .`` (PEP 517), and returns its name."""
    check_go()
    return wheel(this_machine(), version_of_commit(), Path(directory)).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory to write to (default: dist)")
    parser.add_argument("--version", help="of the package and the program (default: that of the commit)")
    parser.add_argument("--arch", action="append", choices=list(TAGS), help="architecture, any number of times (default: that of this machine)")
    args = parser.parse_args()
    check_go()
    args.out.mkdir(parents=True, exist_ok=True)
    for arch in args.arch or [this_machine()]:
        print(wheel(arch, args.version or version_of_commit(), args.out))


if __name__ == "__main__":
    main()
