package bench

import (
	"bufio"
	"context"
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

	"batchfs/cmd/batchfs/terminal"
)

// A stage is a temporary directory with token files and mounts, and the processes that serve and read them. After close all of
// that is gone.
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

// progress shows a bar on a terminal, and a line elsewhere.
func (s *stage) progress(what string, total int64, unit terminal.Unit) *terminal.Progress {
	if !terminal.Is(s.stderr) {
		fmt.Fprintln(s.stderr, what)
	}
	return terminal.NewProgress(s.stderr, what, total, unit)
}

// given returns the absolute path of a token file, because a daemon has another working directory. It makes one if path is empty.
func (s *stage) given(path string, bytes int64) (string, error) {
	if path == "" {
		return s.tokens("tokens.bin", bytes)
	}
	return filepath.Abs(path)
}

func (s *stage) tokens(name string, bytes int64) (path string, err error) {
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
	// Pages that are not on the disk yet cannot be dropped from the page cache.
	return path, f.Sync()
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
