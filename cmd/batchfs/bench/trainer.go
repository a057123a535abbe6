package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A command tells bench.py to read: one batch that it checks, a lead of untimed batches, then timed batches until there are enough or
// the time is over. It answers with how long it waited for each timed batch, in microseconds.
type command struct {
	Kind    string  `json:"kind"`
	Path    string  `json:"path"` // the token file, or the directory of a sequence in a mount
	Batch   int     `json:"batch"`
	Block   int     `json:"block"`
	Lead    int     `json:"lead"`
	Steps   int     `json:"steps"`
	Seconds float64 `json:"seconds"`
	Compute float64 `json:"compute"` // seconds, before every batch
}

// A trainer is a process that reads batches: bench.py or memory.py; or one that encodes texts, tokenize.py. It lives as long as
// the bench, so that starting an interpreter is never measured.
type trainer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	log strings.Builder
}

// trainer starts Python as a trainer. Cancelling the context kills it.
func (s *stage) trainer(python, script string, args ...string) (*trainer, error) {
	t := &trainer{cmd: exec.CommandContext(s.ctx, python, append([]string{"-c", script}, args...)...)}
	// Its own process group, so that its workers are killed with it. The stage removes the files that it had open.
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	t.cmd.Cancel = func() error { return unix.Kill(-t.cmd.Process.Pid, unix.SIGKILL) }
	t.cmd.WaitDelay = 10 * time.Second // a worker that is left may hold the log open
	t.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1")
	t.cmd.Stderr = &t.log
	var err error
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.out = json.NewDecoder(out)
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("--python: %w", err)
	}
	s.trainers = append(s.trainers, t)
	return t, nil
}

// write sends a command. If the process is dead, the next read has the error.
func (t *trainer) write(c command) { json.NewEncoder(t.in).Encode(c) }

func (t *trainer) read(v any) error {
	if err := t.out.Decode(v); err != nil {
		t.end()
		return fmt.Errorf("%s: %w: %s", t.cmd.Args[0], err, strings.TrimSpace(t.log.String()))
	}
	return nil
}

// end closes the standard input of the process, which ends it, and waits for it.
func (t *trainer) end() {
	t.in.Close()
	t.cmd.Wait()
}
