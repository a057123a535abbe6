package bench

import (
	"context"
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

// A command tells a trainer to run a contender: one batch that it checks, a lead of untimed batches, then timed batches until
// there are enough or the time is over. A contender whose id the trainer knows continues where it stopped, with its files open.
type command struct {
	ID      int     `json:"id"`
	Kind    string  `json:"kind"` // or forget: close everything
	Path    string  `json:"path"` // the token file, or the directory of a sequence in a mount
	Access  string  `json:"access"`
	DType   string  `json:"dtype"`
	Layout  string  `json:"layout"`
	Batch   int     `json:"batch"`
	Block   int     `json:"block"`
	Workers int     `json:"workers"`
	Seed    uint64  `json:"seed"`
	First   uint64  `json:"first"` // number of the first batch; ignored for next
	Lead    int     `json:"lead"`
	Steps   int     `json:"steps"`
	Seconds float64 `json:"seconds"`
	Compute float64 `json:"compute"` // seconds, before every batch
}

// An answer is how long the trainer waited for each timed batch, in microseconds.
type answer struct {
	Waits []float64 `json:"waits"`
}

// hello is the first message of the Python trainer: its versions.
type hello struct {
	Python string `json:"python"`
	NumPy  string `json:"numpy"`
	Torch  string `json:"torch"`
}

// A trainer is a process that reads batches: bench.py, memory.py, or this program as `bench-reader`. It lives as long as the bench,
// so that starting an interpreter is never measured.
type trainer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	log strings.Builder
}

// startTrainer starts a program as a trainer. Cancelling ctx kills it.
func startTrainer(ctx context.Context, args ...string) (*trainer, error) {
	t := &trainer{cmd: exec.CommandContext(ctx, args[0], args[1:]...)}
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
		return nil, err
	}
	return t, nil
}

// write sends a command. If the process is dead, the next read has the error.
func (t *trainer) write(c command) { json.NewEncoder(t.in).Encode(c) }

func (t *trainer) read(v any) error {
	if err := t.out.Decode(v); err != nil {
		t.end()
		return fmt.Errorf("%s: %w: %s", strings.Join(t.cmd.Args, " "), err, strings.TrimSpace(t.log.String()))
	}
	return nil
}

// forget makes the trainer close its files.
func (t *trainer) forget() error {
	t.write(command{Kind: "forget"})
	return t.read(&answer{})
}

// end closes the standard input of the process, which ends it, and waits for it.
func (t *trainer) end() {
	t.in.Close()
	t.cmd.Wait()
}
