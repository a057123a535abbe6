package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// withoutLargeMappings is a Python program that runs another one under a seccomp filter, as in a
// sandbox: mmap(2) of 4 GiB or more of a file fails with EPERM.
const withoutLargeMappings = `
import ctypes, os, platform, struct, sys
MMAP = {"x86_64": 9, "aarch64": 222}[platform.machine()]
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, EPERM = 0x7fff0000, 0x00050001
ops = [  # operation, how many to skip if true and if false, number
    (LOAD, 0, 0, 0), (EQUAL, 0, 4, MMAP),
    (LOAD, 0, 0, 16 + 8 * 4), (AT_LEAST, 2, 0, 1 << 31),  # the descriptor, negative if there is none
    (LOAD, 0, 0, 16 + 8 * 1 + 4), (EQUAL, 0, 1, 0),  # the upper half of the length
    (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, EPERM)]
filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *op) for op in ops))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(ops), ctypes.addressof(filter)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_void_p(ctypes.addressof(program)), 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
`

// A file that cannot be mapped is read with pread, and the mount says so. If it could be mapped
// only for reading, it is.
func TestUnmappableFiles(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	path := filepath.Join(t.TempDir(), "train.bin")
	e2e.NoError(t, os.WriteFile(path, nil, 0o600))
	e2e.NoError(t, os.Truncate(path, 64<<30))
	// Some tokens are not zero, so that a batch can be told from nothing.
	file := e2e.Must(os.OpenFile(path, os.O_WRONLY, 0))(t)
	for k := range int64(64) {
		e2e.Must(file.WriteAt(e2e.TokensOfVersion(1, 5000), k<<30))(t)
	}
	e2e.NoError(t, file.Close())
	settings := []string{"--set", "splits.train.tokens=" + path, "--set", "splits.train.token_dtype=uint16", "--set", "batch.order=sequential",
		"--set", "batch.batch_size=4", "--set", "memory.ahead=0"}
	want := e2e.Digests(t, "train", 0, 3, append(settings, "--set", "memory.access=pread")...)
	const needs = "the address space is limited to 2048 MiB, and a mount needs 3328: raise the limit (ulimit -v"
	e2e.CheckFails(t, needs, append([]string{"sh", "-c", `ulimit -v 2097152 && exec "$0" mount "$@"`, e2e.PlainBatchfs, t.TempDir()}, settings...)...)
	e2e.CheckFails(t, "1 to fix", "sh", "-c", `ulimit -v 2097152 && exec "$0" doctor`, e2e.PlainBatchfs)
	for _, limit := range []struct {
		name     string
		command  []string
		unmapped bool
	}{
		{"address space", []string{"sh", "-c", `ulimit -v 12582912 && exec "$0" "$@"`, e2e.PlainBatchfs}, true},
		{"seccomp", []string{e2e.Python, "-c", withoutLargeMappings, e2e.PlainBatchfs}, true},
		{"writable memory", []string{"sh", "-c", `ulimit -d 12582912 && exec "$0" "$@"`, e2e.PlainBatchfs}, false},
	} {
		for _, access := range []string{"remap", "advise"} {
			t.Run(limit.name+","+access, func(t *testing.T) {
				t.Parallel()
				m := e2e.MountProgram(t, exec.Command(limit.command[0], limit.command[1:]...), append(settings, "--set", "memory.access="+access)...)
				for k := range want {
					e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.FileDigest(t, m, "train/next"), want[k])
				}
				status := e2e.JSON[struct {
					Remap struct{ Mapped, Unmapped int }
				}](t, "cat", m.Path("status.json")).Remap
				if status.Unmapped > 0 != limit.unmapped || status.Mapped > 0 == limit.unmapped {
					t.Errorf("status.json says %+v, want that reads were mapped: %v", status, !limit.unmapped)
				}
				metric := fmt.Sprintf("\nbatchfs_unmapped_reads_total %d\n", status.Unmapped)
				e2e.Contains(t, "metrics", e2e.Run(t, "cat", m.Path("metrics")), metric)
				if n := strings.Count(m.Out.String(), "cannot be mapped"); n > 1 || n > 0 != limit.unmapped {
					t.Errorf("the log says %d times that the file cannot be mapped:\n%s", n, m.Out)
				}
			})
		}
	}
}
