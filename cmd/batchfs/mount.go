package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/fs"
)

type mountFlags struct {
	configFlags
	background bool
	logFile    string
	noResend   bool
}

func mountCommand() *cobra.Command {
	var f mountFlags
	cmd := &cobra.Command{
		Use:   "mount [MOUNTPOINT]",
		Short: "Mount token files as training batches",
		Long: `Mount the splits of a configuration file, or the train*.bin and val*.bin of a directory, at MOUNTPOINT (an empty
directory; default: mountpoint of the configuration file). Every token file is checked first.

The command stays in the foreground until it is stopped with Ctrl-C or SIGTERM or the mount is unmounted. With -d it goes
to the background, and returns 0 only when reads succeed.

A process of its own serves, and this one keeps the mount: should the other die or hang, one that goes on takes its place, and
readers do not notice. "batchfs restart" replaces it on purpose.`,
		Example: `  batchfs mount --data data/shakespeare_char /mnt/batches
  batchfs mount -c config.toml -d
  batchfs mount -c config.toml --set batch.seed=7 --set splits.val.order=sequential /mnt/batches`,
		Args:              cobra.MaximumNArgs(1),
		RunE:              f.mount,
		ValidArgsFunction: directories,
	}
	f.flags(cmd)
	cmd.Flags().BoolVarP(&f.background, "background", "d", false, "go to the background once batches can be read")
	cmd.Flags().StringVar(&f.logFile, "log", "",
		"write the log to this `file` (default: standard error; with -d, batchfs/batchfs.log in the user's state directory)")
	cmd.Flags().BoolVar(&f.noResend, "no-resend", false,
		"do as on Linux before 6.9: should the process that serves die, readers get errors, and there is a new mount at once")
	return cmd
}

func (f *mountFlags) mount(cmd *cobra.Command, args []string) error {
	w, err := f.read()
	if err != nil {
		return err
	}
	c, err := w.decodeSplits()
	if err != nil {
		return err
	}
	if len(args) == 1 {
		c.Mountpoint = args[0]
	}
	if c.Mountpoint == "" {
		return errors.New("where to? name a MOUNTPOINT, or set mountpoint in the configuration file")
	}
	mountpoint, err := checkMountpoint(c, f.logFile)
	if err != nil {
		return err
	}
	splits, err := c.open()
	if err != nil {
		return err
	}
	taken, err := f.snapshot(mountpoint, w, splits)
	if err != nil {
		return err
	}
	taken.NoResend = f.noResend
	file, err := taken.file()
	if err != nil {
		return err
	}
	defer file.Close()
	if f.background {
		return f.mountInBackground(cmd, taken, file, c, splits)
	}
	logTo := cmd.ErrOrStderr()
	if f.logFile != "" {
		file, err := openLog(f.logFile)
		if err != nil {
			return err
		}
		defer file.Close()
		logTo = file
	}
	return keep(cmd.Context(), taken, c, file, logTo, func() {
		describe(cmd.OutOrStdout(), mountpoint, splits)
		fmt.Fprintf(cmd.OutOrStdout(), "stop with Ctrl-C, or: batchfs unmount %s\n", mountpoint)
	})
}

// mountInBackground starts a keeper, and returns when a batch of every split can be read.
func (f *mountFlags) mountInBackground(cmd *cobra.Command, taken *snapshot, file *os.File, c *config, splits []opened) error {
	logFile, err := f.backgroundLog()
	if err != nil {
		return err
	}
	log, err := openLog(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	ready, child, err := os.Pipe()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	daemon := exec.Command(program, "keep")
	daemon.Stderr = log
	daemon.ExtraFiles = []*os.File{child, file}
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Whatever the caller has open, such as a pipe whose end somebody waits for, is not the daemon's.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := daemon.Start(); err != nil {
		return err
	}
	child.Close()
	stop := context.AfterFunc(cmd.Context(), func() { daemon.Process.Signal(syscall.SIGTERM) })
	defer stop()
	said, err := io.ReadAll(ready)
	if err != nil {
		return err
	}
	mountpoint := taken.Mountpoint
	if string(said) != serving {
		err := daemon.Wait()
		if len(said) > 0 {
			return errors.New(string(said))
		}
		return fmt.Errorf("the background process ended before it served: %w; its log is %s", err, logFile)
	}
	for _, s := range splits {
		// A numbered batch, so that no number is taken.
		first := filepath.Join(mountpoint, s.split.Split, "batch", fmt.Sprint(s.split.Start))
		if err := readable(first); err != nil {
			daemon.Process.Signal(syscall.SIGTERM)
			daemon.Wait()
			return fmt.Errorf("mounted, but a batch could not be read (see %s): %w; unmounted again", logFile, err)
		}
	}
	describe(cmd.OutOrStdout(), mountpoint, splits)
	fmt.Fprintf(cmd.OutOrStdout(), "in the background, process %d, log %s\nstop with: batchfs unmount %s\n", daemon.Process.Pid, logFile, mountpoint)
	return daemon.Process.Release()
}

func readable(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Read(make([]byte, 1))
	return err
}

// backgroundLog is the absolute path of the log of a mount without a terminal.
func (f *mountFlags) backgroundLog() (string, error) {
	if f.logFile != "" {
		return filepath.Abs(f.logFile)
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("where to log to? %w; name a file with --log", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(state, "batchfs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("no place for the log: %w; name a file with --log", err)
	}
	return filepath.Join(dir, "batchfs.log"), nil
}

func openLog(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("the log: %w", err)
	}
	return file, nil
}

func newLog(w io.Writer, o logOptions) *slog.Logger {
	var level slog.Level
	level.UnmarshalText([]byte(o.Level)) // one of those that its key allows
	options := &slog.HandlerOptions{Level: level}
	if o.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// describe says what is served and how to read it.
func describe(out io.Writer, mountpoint string, splits []opened) {
	fmt.Fprintf(out, "%s serves\n", mountpoint)
	for _, s := range splits {
		q := s.sequence
		fmt.Fprintf(out, "  %-8s %d %s, %d bytes a batch, order %s, seed %d: %d tokens in %d file(s)\n",
			s.split.Split, q.Shape(), q.DType, q.BatchBytes(), q.Order, q.Seed, s.tokens.Len(), len(slices.Concat(s.tokens.Files()...)))
	}
	fmt.Fprintf(out, "each open of %s is a fresh batch; %s/README says more\n", filepath.Join(mountpoint, splits[0].split.Split, "next"), mountpoint)
}

// checkMountpoint returns the path, absolute and without symbolic links, of a directory that can be mounted on.
func checkMountpoint(c *config, logFile string) (string, error) {
	path := c.Mountpoint
	abs, err := resolve(path)
	if err != nil {
		return "", fmt.Errorf("mountpoint %s: %w", path, err)
	}
	mounted, err := fs.Find(abs)
	if err != nil {
		return "", err
	}
	if mounted != nil && mounted.Dead() {
		if err := fs.Unmount(abs, true); err != nil {
			return "", fmt.Errorf("mountpoint %s holds a dead batchfs mount: %w", path, err)
		}
		return checkMountpoint(c, logFile) // there may be another below
	}
	if mounted != nil { // which may be stuck, so it is not touched
		return "", fmt.Errorf("mountpoint %s: a batchfs is already mounted there; batchfs unmount %s ends it", path, path)
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("mountpoint %s does not exist; make it with: mkdir -p %s", path, path)
	case err != nil:
		return "", fmt.Errorf("mountpoint: %w", err)
	case !info.IsDir():
		return "", fmt.Errorf("mountpoint %s is a file; it must be an empty directory", path)
	}
	for _, s := range c.Splits {
		files, err := s.files()
		if err != nil {
			return "", err
		}
		for _, file := range slices.Concat(files...) {
			if inside(abs, file) {
				return "", fmt.Errorf("splits.%s: %s lies in the mountpoint %s, which would hide it", s.Split, file, path)
			}
		}
	}
	if logFile != "" && inside(abs, logFile) {
		return "", fmt.Errorf("--log: %s lies in the mountpoint %s, which would hide it", logFile, path)
	}
	entries, err := os.ReadDir(abs)
	if err != nil {
		return "", fmt.Errorf("mountpoint: %w", err)
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("mountpoint %s is not empty (it holds %s); a mount would hide that, choose an empty directory", path, entries[0].Name())
	}
	return abs, nil
}

// inside says whether a file, which may not be there yet, lies in dir.
func inside(dir, file string) bool {
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		real, err = filepath.EvalSymlinks(filepath.Dir(file))
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	return err == nil && strings.HasPrefix(real+"/", strings.TrimSuffix(dir, "/")+"/")
}

// resolve makes a path absolute and free of symbolic links, as the kernel's table of mounts has it. It does not touch the
// last component where that is a mount, which may be dead.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if mounted, err := fs.Find(abs); mounted != nil || err != nil {
		return abs, err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	if mounted, err := fs.Find(abs); mounted != nil || err != nil {
		return abs, err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	return abs, nil
}
