"""Tests the wheel that BATCHFS_WHEEL names, or one that it builds: its files, its bytes, and an installation that mounts."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path

import numpy as np

PYTHON = Path(__file__).resolve().parents[1]
LIMIT = 300  # seconds that a build or an installation may take
USE = """
import batchfs, os, sys
with batchfs.mount(sys.argv[1], batch_size=2, block_size=8) as m:
    for step, batch in m.split("train").steps(3, 5):
        print(step, (batch.x[:, 1:] == batch.y[:, :-1]).all())
assert not os.path.exists(m.mountpoint)
print(batchfs.__version__)
"""


def build(out: str) -> Path:
    command = [sys.executable, str(PYTHON / "wheel.py"), "--out", out, "--arch", "amd64", "--version", "1.2.3"]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT).stdout.strip())


class TestWheel(unittest.TestCase):
    directory: tempfile.TemporaryDirectory[str]
    wheel: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        cls.wheel = Path(os.environ.get("BATCHFS_WHEEL") or build(cls.directory.name))

    @classmethod
    def tearDownClass(cls) -> None:
        cls.directory.cleanup()

    def test_files(self) -> None:
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            info = next(name for name in names if name.endswith("/RECORD")).partition("/")[0]
            listed = list(csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())))
            self.assertEqual(sorted(row[0] for row in listed), sorted(names))
            for name, digest, size in listed[:-1]:
                data = archive.read(name)
                want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, size), (f"sha256={want}", str(len(data))))
            self.assertEqual(listed[-1], [f"{info}/RECORD", "", ""])
            (script,) = (entry for entry in archive.infolist() if ".data/scripts/" in entry.filename)
            self.assertEqual(script.external_attr >> 16, 0o100755)
            tags = {line for line in archive.read(f"{info}/WHEEL").decode().splitlines() if line.startswith("Tag: ")}
            self.assertEqual({f"Tag: py3-none-{tag}" for tag in self.wheel.stem.split("-")[-1].split(".")}, tags)
            linked = {c["name"] for c in json.loads(archive.read(f"{info}/sboms/batchfs.cdx.json"))["components"]}
            licenses = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
            for module in linked:  # each linked module has its license
                there = "go/LICENSE" if module == "std" else f"{module}@"
                self.assertTrue(any(name.startswith(there) for name in licenses), module)
            files = {line.partition(": ")[2] for line in archive.read(f"{info}/METADATA").decode().splitlines() if "License-File" in line}
            self.assertEqual(files, licenses)

    @unittest.skipIf("BATCHFS_WHEEL" in os.environ, "the wheel was built elsewhere")
    def test_same_bytes(self) -> None:
        with tempfile.TemporaryDirectory() as again:
            self.assertEqual(build(again).read_bytes(), self.wheel.read_bytes())

    @unittest.skipUnless(importlib.util.find_spec("ensurepip"), "no ensurepip: apt-get install python3-venv")
    def test_install(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            there = Path(temporary)
            venv.create(there / "venv", with_pip=True)
            python = str(there / "venv/bin/python")
            subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", str(self.wheel)], check=True, timeout=LIMIT)
            (there / "data").mkdir()
            np.arange(1000, dtype=np.uint16).tofile(there / "data/train.bin")
            # The installation uses the NumPy of these tests, so that nothing is downloaded.
            env = {name: value for name, value in os.environ.items() if name != "BATCHFS_PROGRAM"}
            env.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", PYTHONPATH=str(Path(np.__file__).parents[1]))
            run = subprocess.run([python, "-c", USE, str(there / "data")], cwd=there, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT)
            version = self.wheel.name.split("-")[1]
            self.assertEqual(run.stdout, f"3 True\n4 True\n{version}\n")
            said = subprocess.run([python, "-m", "batchfs", "version"], cwd=there, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT)
            self.assertEqual(said.stdout, f"batchfs {version}\n")
            if "BATCHFS_WHEEL" not in os.environ:  # pip can also build it
                subprocess.run([python, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "-w", str(there), str(PYTHON.parent)], check=True, timeout=LIMIT)
                self.assertEqual(len(list(there.glob("batchfs-*.whl"))), 1)


if __name__ == "__main__":
    unittest.main()
