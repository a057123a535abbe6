package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed bench.py
var benchPy []byte

// A command has a trainer run a contender: one batch that it checks, a lead, then timed ones until there are enough of them or
// the time is over. What has an id that it knows goes on where it was, files still open.
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
	First   uint64  `json:"first"` // number of the first batch, but of next
	Lead    int     `json:"lead"`
	Steps   int     `json:"steps"`
	Seconds float64 `json:"seconds"`
	Compute float64 `json:"compute"` // seconds, before every batch
}

// An answer has the microseconds that each timed batch was waited for.
type answer struct {
	Waits []float64 `json:"waits"`
}

// hello is what the Python trainer says of itself.
type hello struct {
	Python string `json:"python"`
	NumPy  string `json:"numpy"`
	Torch  string `json:"torch"`
}

// A trainer is a process that takes batches: bench.py, memory.py, or this program as `bench-reader`. It lives as long as
// the bench, so that nobody waits for an interpreter.
type trainer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	log strings.Builder
}

func (s *stage) trainer(ctx context.Context, args ...string) (*trainer, error) {
	t := &trainer{cmd: exec.CommandContext(ctx, args[0], args[1:]...)}
	// A group of its own, to be killed with its workers. What it had open is on the stage, and goes with that.
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
	s.trainers = append(s.trainers, t)
	return t, nil
}

func (s *stage) pythonTrainer(ctx context.Context, python string) (t *trainer, h hello, err error) {
	script := filepath.Join(s.dir, "bench.py")
	if err := os.WriteFile(script, benchPy, 0o600); err != nil {
		return nil, h, err
	}
	if t, err = s.trainer(ctx, python, script); err != nil {
		return nil, h, fmt.Errorf("--python: %w", err)
	}
	if err := t.read(&h); err != nil {
		return nil, h, fmt.Errorf("%w; does the Python that --python names have NumPy?", err)
	}
	return t, h, nil
}

func (s *stage) goTrainer(ctx context.Context) (*trainer, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return s.trainer(ctx, program, readerName)
}

// write leaves it to read to say that the process is dead.
func (t *trainer) write(c command) { json.NewEncoder(t.in).Encode(c) }

func (t *trainer) read(v any) error {
	if err := t.out.Decode(v); err != nil {
		t.end()
		return fmt.Errorf("%s: %w: %s", strings.Join(t.cmd.Args, " "), err, strings.TrimSpace(t.log.String()))
	}
	return nil
}

// forget closes all that the trainer has open.
func (t *trainer) forget() error {
	t.write(command{Kind: "forget"})
	return t.read(&answer{})
}

// end waits for the process, which goes when it is told nothing more.
func (t *trainer) end() {
	t.in.Close()
	t.cmd.Wait()
}
