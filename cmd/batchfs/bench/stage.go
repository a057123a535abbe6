package bench

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

//go:embed bench.py
var benchPy []byte

// A stage is a temporary directory with token files and mounts, and the processes that serve and read them. After close all of
// that is gone.
type stage struct {
	dir      string
	daemons  []*daemon
	trainers []*trainer
}

// newStage makes a stage below dir, or below the default directory for temporary files if dir is empty.
func newStage(dir string) (*stage, error) {
	dir, err := filepath.Abs(cmp.Or(dir, os.TempDir()))
	if err != nil {
		return nil, err
	}
	dir, err = os.MkdirTemp(dir, "batchfs-bench-")
	return &stage{dir: dir}, err
}

// close ends every process and removes every file.
func (s *stage) close() error {
	var errs []error
	for _, t := range s.trainers {
		t.end()
	}
	for _, d := range s.daemons {
		errs = append(errs, d.end())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// tokens writes a file of random uint16 tokens below 50,257; or, if sparse, of zeros that take no space. It writes the same bytes to
// progress.
func (s *stage) tokens(ctx context.Context, name string, bytes int64, sparse bool, progress io.Writer) (path string, err error) {
	path = filepath.Join(s.dir, name)
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if sparse {
		return path, f.Truncate(bytes)
	}
	random := rand.NewPCG(1, 2)
	chunk := make([]byte, 1<<20)
	for left := bytes; left > 0; left -= int64(len(chunk)) {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		chunk = chunk[:min(int64(len(chunk)), left)]
		for i := 0; i+8 <= len(chunk); i += 8 {
			r := random.Uint64()
			for j := 0; j < 8; j += 2 {
				binary.LittleEndian.PutUint16(chunk[i+j:], uint16(uint32(r>>(8*j)&0xffff)*50257>>16))
			}
		}
		if _, err := f.Write(chunk); err != nil {
			return "", err
		}
		progress.Write(chunk)
	}
	// Pages that are not on the disk yet cannot be dropped from the page cache.
	return path, f.Sync()
}

// trainer starts a program as a trainer.
func (s *stage) trainer(ctx context.Context, args ...string) (*trainer, error) {
	t, err := startTrainer(ctx, args...)
	if err == nil {
		s.trainers = append(s.trainers, t)
	}
	return t, err
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

// A daemon is a process that serves a mount with a split named train.
type daemon struct {
	mountpoint string
	pid        int // of its worker, which reads the tokens
	cmd        *exec.Cmd
	log        strings.Builder
	ended      bool
}

// mount starts this program to serve a token file. sets are arguments of --set, for example "memory.access=pread".
func (s *stage) mount(tokens string, sets ...string) (*daemon, error) {
	mountpoint, err := os.MkdirTemp(s.dir, "mnt-")
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"mount", "--set", fmt.Sprintf("splits.train.tokens=[%q]", tokens)}
	for _, set := range sets {
		args = append(args, "--set", set)
	}
	d := &daemon{mountpoint: mountpoint, cmd: exec.Command(program, append(args, "--", mountpoint)...)}
	d.cmd.Dir = s.dir // where there is no config.toml
	// Its own process group, because Ctrl-C ends the bench, which then unmounts. If the bench is killed, the daemon gets a
	// signal and unmounts by itself.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	d.cmd.Stderr = &d.log
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	s.daemons = append(s.daemons, d)
	if said, _ := bufio.NewReader(out).ReadString('\n'); said == "" {
		d.cmd.Wait()
		d.ended = true
		return nil, fmt.Errorf("batchfs %s: %s", strings.Join(args, " "), strings.TrimSpace(d.log.String()))
	}
	go io.Copy(io.Discard, out)
	var status struct{ PID int }
	text, err := os.ReadFile(filepath.Join(mountpoint, "status.json"))
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	d.pid = status.PID
	return d, err
}

// end unmounts and waits for the process to end.
func (d *daemon) end() error {
	if d.ended {
		return nil
	}
	d.ended = true
	unix.Unmount(d.mountpoint, unix.MNT_DETACH) // as an ordinary user it fails, and the signal does it
	d.cmd.Process.Signal(syscall.SIGTERM)
	if err := d.cmd.Wait(); err != nil {
		return fmt.Errorf("the mount at %s: %w: %s", d.mountpoint, err, strings.TrimSpace(d.log.String()))
	}
	return nil
}
