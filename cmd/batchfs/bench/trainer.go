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

	"batchfs/internal/jsonbytes"
)

// A trainerCommand makes bench.py read a batch to check, then Untimed batches, then timed ones
// until it has read Steps of them or Seconds have passed. bench.py replies with the wait for each
// timed batch, in microseconds.
type trainerCommand struct {
	Kind    string           `json:"kind"`
	Path    jsonbytes.String `json:"path"` // token file, or a settings directory of a mount
	Batch   int              `json:"batch"`
	Block   int              `json:"block"`
	Untimed int              `json:"lead"`
	Steps   int              `json:"steps"`
	Seconds float64          `json:"seconds"`
	Compute float64          `json:"compute"` // seconds of simulated work before each batch
}

// A trainer is a Python process that runs bench.py. It takes many measurements, none of which
// includes the start of Python.
type trainer struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr strings.Builder
}

// startTrainer starts a trainer. Canceling the stage's context kills it.
func (s *stage) startTrainer(python string) (*trainer, error) {
	t := &trainer{cmd: exec.CommandContext(s.ctx, python, "-c", benchPy)}
	// The trainer gets its own process group, so that its worker processes are killed too.
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	t.cmd.Cancel = func() error { return unix.Kill(-t.cmd.Process.Pid, unix.SIGKILL) }
	t.cmd.WaitDelay = 10 * time.Second // a surviving worker may keep standard error open
	t.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1")
	t.cmd.Stderr = &t.stderr
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

// write sends a command. If the process has died, the next read returns the error.
func (t *trainer) write(c trainerCommand) { json.NewEncoder(t.in).Encode(c) }

func (t *trainer) read(v any) error {
	if err := t.out.Decode(v); err != nil {
		t.stop()
		return fmt.Errorf("%s: %w: %s", t.cmd.Args[0], err, strings.TrimSpace(t.stderr.String()))
	}
	return nil
}

// stop closes the standard input of the process, which ends it, and waits for it.
func (t *trainer) stop() {
	t.in.Close()
	t.cmd.Wait()
}
