package bench

import (
	"bufio"
	"context"
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

	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/terminal"
)

// A stage is a temporary directory with token files and mounts, and the processes that serve and
// read them.
type stage struct {
	ctx      context.Context
	stderr   io.Writer
	dir      string
	daemons  []*daemon
	trainers []*trainer
}

func (s *stage) open(dir string) (err error) {
	if dir, err = filepath.Abs(dir); err == nil {
		s.dir, err = os.MkdirTemp(dir, "batchfs-bench-")
	}
	return err
}

// close stops every process and removes every file.
func (s *stage) close() error {
	var errs []error
	for _, t := range s.trainers {
		t.stop()
	}
	for _, d := range s.daemons {
		errs = append(errs, d.stop())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// progress shows a bar on a terminal, and prints a line elsewhere.
func (s *stage) progress(what string, total int64, unit terminal.Unit) *terminal.Progress {
	if !terminal.Is(s.stderr) {
		fmt.Fprintln(s.stderr, what)
	}
	return terminal.NewProgress(s.stderr, what, total, unit)
}

func (s *stage) createTokens(name string, bytes int64) (path string, err error) {
	bar := s.progress(fmt.Sprintf("making a file of %d MiB", bytes>>20), bytes, terminal.Bytes)
	defer bar.Finish()
	path = filepath.Join(s.dir, name)
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{})
	chunk := make([]byte, 1<<20)
	for left := bytes; left > 0; left -= int64(len(chunk)) {
		if s.ctx.Err() != nil {
			return "", s.ctx.Err()
		}
		chunk = chunk[:min(int64(len(chunk)), left)]
		random.Read(chunk)
		if _, err := f.Write(chunk); err != nil {
			return "", err
		}
		bar.Add(len(chunk))
	}
	// Only pages that were written to the disk can be dropped from the page cache.
	return path, f.Sync()
}

// A daemon is a process that serves a mount with one split, train.
type daemon struct {
	mountpoint string
	cmd        *exec.Cmd
	stderr     strings.Builder
	stopped    bool
}

// mount starts a daemon that serves a token file, which has an absolute path. sets are arguments of
// --set, such as "memory.access=pread".
func (s *stage) mount(tokens string, sets ...string) (*daemon, error) {
	mountpoint, err := os.MkdirTemp(s.dir, "mnt-")
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// An absolute path is not valid TOML, so --set takes it as it is.
	args := []string{"mount", "--set", "splits.train.tokens=" + blob.EscapeGlob(tokens)}
	for _, set := range sets {
		args = append(args, "--set", set)
	}
	d := &daemon{mountpoint: mountpoint, cmd: exec.Command(program, append(args, "--", mountpoint)...)}
	d.cmd.Dir = s.dir // has no config.toml
	// The daemon gets its own process group, so that Ctrl-C ends only the bench, which then
	// unmounts. If the bench is killed, a signal makes the daemon unmount.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	d.cmd.Stderr = &d.stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	s.daemons = append(s.daemons, d)
	if line, _ := bufio.NewReader(out).ReadString('\n'); line == "" {
		d.cmd.Wait()
		d.stopped = true
		return nil, fmt.Errorf("batchfs %s: %s", strings.Join(args, " "), strings.TrimSpace(d.stderr.String()))
	}
	go io.Copy(io.Discard, out)
	return d, nil
}

func (d *daemon) stop() error {
	if d.stopped {
		return nil
	}
	d.stopped = true
	unix.Unmount(d.mountpoint, unix.MNT_DETACH) // ordinary users need the signal instead
	d.cmd.Process.Signal(syscall.SIGTERM)
	if err := d.cmd.Wait(); err != nil {
		return fmt.Errorf("the mount at %s: %w: %s", d.mountpoint, err, strings.TrimSpace(d.stderr.String()))
	}
	return nil
}
