package e2e

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// VersionOf makes n tokens that tell their version, one of six, and their position. No two versions have a batch in common.
func VersionOf(v, n int) []byte {
	var raw []byte
	for i := range n {
		raw = binary.LittleEndian.AppendUint16(raw, uint16(v*10_000+i%10_000))
	}
	return raw
}

// Start starts a method of clients/readers.py that is told what to do on its standard input.
func Start(t *testing.T, method, dir string, args ...string) (cmd *exec.Cmd, in io.WriteCloser, out *bufio.Scanner) {
	t.Helper()
	cmd = exec.Command(Python, append([]string{"clients/readers.py", method, dir}, args...)...)
	cmd.Stderr = os.Stderr
	in = Must(cmd.StdinPipe())(t)
	pipe := Must(cmd.StdoutPipe())(t)
	NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, in, bufio.NewScanner(pipe)
}

// Handles is a running clients/readers.py handles.
type Handles struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// StartHandles starts a reader for the files of a directory. It ends with the test.
func StartHandles(t *testing.T, dir string) *Handles {
	t.Helper()
	cmd, in, out := Start(t, "handles", dir)
	t.Cleanup(func() {
		defer AnswersSoon(t, cmd)()
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("handles: %v", err)
		}
	})
	return &Handles{t, cmd, in, out}
}

// Do runs one command, and returns what the reader prints.
func (h *Handles) Do(command string, args ...any) string {
	h.t.Helper()
	defer AnswersSoon(h.t, h.cmd)()
	fmt.Fprintf(h.in, command+"\n", args...)
	if !h.out.Scan() {
		h.t.Fatalf("%s: the reader ended", fmt.Sprintf(command, args...))
	}
	return h.out.Text()
}

// MountFollowing mounts a file of the given tokens as train, whose changes are followed, with some that stays as val.
func MountFollowing(t *testing.T, tokens []byte, args ...string) (m *Mounted, file string, settings []string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "train.bin")
	Write(t, file, tokens)
	settings = append([]string{"--set", "batch.batch_size=4", "--set", "batch.block_size=32"}, args...)
	data := []string{"--data", filepath.Dir(file), "--set", "splits.train.on_change=follow"}
	return Mount(t, append(data, settings...)...), file, settings
}

// ReplaceFile puts other data in the place of a file, at once.
func ReplaceFile(t testing.TB, file string, data []byte) {
	t.Helper()
	Write(t, file+".new", data)
	NoError(t, os.Rename(file+".new", file))
}
