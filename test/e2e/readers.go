package e2e

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"batchfs/internal/testwait"
)

// TokensOfVersion returns n tokens whose values are 10,000 v plus their positions modulo 10,000. v
// is from 0 to 5. No two versions share a batch.
func TokensOfVersion(v, n int) []byte {
	raw := make([]byte, 0, 2*n)
	for i := range n {
		raw = binary.LittleEndian.AppendUint16(raw, uint16(v*10_000+i%10_000))
	}
	return raw
}

// A Client is a running program that reads a mount until its standard input ends. Some print
// "ready" when they have begun.
type Client struct {
	Cmd *exec.Cmd
	In  io.WriteCloser
	Out *bufio.Reader

	pipe *os.File // from which Out reads
}

// StartClient starts a program. It is killed at the end of the test.
func StartClient(t testing.TB, cmd *exec.Cmd) *Client {
	t.Helper()
	printLogsOfFailure(t)
	in, out := Must(cmd.StdinPipe())(t), Must(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		testwait.End(t, fmt.Sprintf("the end of %s", cmd.Args), func() { cmd.Wait() })
	})
	return &Client{cmd, in, bufio.NewReader(out), out.(*os.File)}
}

// ReadLine returns the next line that the program prints.
func (c *Client) ReadLine(t testing.TB) string {
	t.Helper()
	NoError(t, c.pipe.SetReadDeadline(testwait.Deadline(t)))
	defer c.pipe.SetReadDeadline(time.Time{})
	line, err := c.Out.ReadString('\n')
	if err != nil {
		t.Fatalf("a line of %s: %v; saw: %q", c.Cmd.Args, err, line)
	}
	return strings.TrimSuffix(line, "\n")
}

// AwaitReady waits until the program prints "ready".
func (c *Client) AwaitReady(t testing.TB) {
	t.Helper()
	Equal(t, fmt.Sprint(c.Cmd.Args), c.ReadLine(t), "ready")
}

// End ends the input of the program, which must then succeed, and returns the rest of its output.
func (c *Client) End(t testing.TB) string {
	t.Helper()
	c.In.Close()
	NoError(t, c.pipe.SetReadDeadline(testwait.Deadline(t)))
	text, err := io.ReadAll(c.Out)
	if err != nil {
		t.Fatalf("the end of the output of %s: %v; saw: %q", c.Cmd.Args, err, text)
	}
	testwait.End(t, fmt.Sprintf("the end of %s", c.Cmd.Args), func() { err = c.Cmd.Wait() })
	if err != nil {
		t.Errorf("%s: %v\n%s", c.Cmd.Args, err, text)
	}
	return string(text)
}

// Handles is a running `clients/readers.py handles`, which opens and reads files on command.
type Handles struct {
	*Client
	t testing.TB
}

// StartHandles starts a reader of files in a directory. It ends with the test.
func StartHandles(t testing.TB, dir string) *Handles {
	t.Helper()
	c := StartClient(t, exec.Command(Python, "clients/readers.py", "handles", dir))
	t.Cleanup(func() { c.End(t) })
	return &Handles{c, t}
}

// Do sends a command and returns the line that the reader prints.
func (h *Handles) Do(command string, args ...any) string {
	h.t.Helper()
	fmt.Fprintf(h.In, command+"\n", args...)
	return h.ReadLine(h.t)
}

// ReplaceFile replaces a file atomically.
func ReplaceFile(t testing.TB, file string, data []byte) {
	t.Helper()
	Write(t, file+".new", data)
	NoError(t, os.Rename(file+".new", file))
}
