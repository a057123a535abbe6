"""Lets a command open only sockets of some address families: families.py FAMILIES COMMAND...

systemd's RestrictAddressFamilies= works the same way.
"""
import ctypes
import os
import platform
import socket
import struct
import sys

families = [getattr(socket, name) for name in sys.argv[1].split()]
n = len(families)
create = {"x86_64": 41, "aarch64": 198}[platform.machine()]  # socket(2)
load, equal, end = 0x20, 0x15, 0x06  # instructions of a BPF program
code = [(load, 0, 0, 0), (equal, 0, n + 2, create), (load, 0, 0, 16)]
code += [(equal, n - i, 0, family) for i, family in enumerate(families)]
code += [(end, 0, 0, 0x50000 | 97), (end, 0, 0, 0x7FFF0000)]  # EAFNOSUPPORT, or allow
raw = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(raw)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl.argtypes = [ctypes.c_int] + 4 * [ctypes.c_ulong]
# PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP.
for request in (38, 1, 0, 0, 0), (22, 2, ctypes.addressof(program), 0, 0):
    if prctl(*request):
        sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[2], sys.argv[2:])
