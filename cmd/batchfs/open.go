package main

import (
	"bytes"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
)

// opened is what `open` writes to the process that started it.
type opened struct {
	Snapshot    *dataset.Snapshot
	Description []string // of what is served, in lines for people
}

// openInChild reads the configuration and checks the token files in another process: one that waits for a disk that does not answer
// cannot end, and a mount that is starting must end when it is told to. The process is killed when this one ends.
func openInChild(f *mountFlags, mountpoint []string) (*dataset.Snapshot, []string, error) {
	args := []string{"open", "--config=" + f.Config, "--data=" + f.Data, "--log=" + f.logFile, fmt.Sprint("--background=", f.background)}
	for _, set := range f.Sets {
		args = append(args, "--set="+set)
	}
	if f.fd >= 0 {
		args = append(args, fmt.Sprint("--fd=", f.fd))
	}
	cmd := exec.Command("/proc/self/exe", append(append(args, "--"), mountpoint...)...)
	cmd.Args[0] = os.Args[0]
	var out, stderr bytes.Buffer // pipes: whoever reads what this process prints must not wait for that one
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, &out, &stderr
	// A group of its own would keep it from reading a configuration that is typed in, so it ignores Ctrl-C instead.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return nil, nil, errors.New(cmp.Or(out.String(), fmt.Sprintf("the process that opened the files ended: %v\n%s", err, &stderr)))
	}
	var o opened
	err := gob.NewDecoder(&out).Decode(&o)
	return o.Snapshot, o.Description, err
}

// openCommand opens all that a mount needs, for openInChild. It writes a gob, or the error.
func openCommand() *cobra.Command {
	var f mountFlags
	cmd := &cobra.Command{
		Use:    "open [MOUNTPOINT]",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.open(args)
			if err == nil {
				err = gob.NewEncoder(cmd.OutOrStdout()).Encode(o)
			}
			if err != nil {
				fmt.Fprint(cmd.OutOrStdout(), err)
				return exitStatus(1)
			}
			return nil
		},
	}
	f.register(cmd)
	return cmd
}

func (f *mountFlags) open(args []string) (*opened, error) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	raw, err := f.Read()
	if err != nil {
		return nil, err
	}
	c, err := raw.Decode()
	if err != nil {
		return nil, err
	}
	if len(args) == 1 {
		c.Mountpoint = args[0]
	}
	if c.Mountpoint == "" {
		return nil, errors.New("no mountpoint: name a MOUNTPOINT, or set mountpoint in the configuration file")
	}
	mountpoint, err := f.place(c)
	if err != nil {
		return nil, err
	}
	splits, err := openReadable(c)
	if err != nil {
		return nil, err
	}
	snapshot, err := dataset.NewSnapshot(mountpoint, f.Flags, raw, splits)
	if err != nil {
		return nil, err
	}
	snapshot.Log, err = f.logPath(mountpoint)
	return &opened{snapshot, describe(mountpoint, splits)}, err
}

// place returns the mountpoint, absolute.
func (f *mountFlags) place(c *config.Config) (mountpoint string, err error) {
	if f.fd >= 0 {
		return filepath.Abs(c.Mountpoint) // and not touched: no worker serves it yet
	}
	return checkMountpoint(c, f.logFile)
}

// logPath is the absolute path of the log, or empty for standard error.
func (f *mountFlags) logPath(mountpoint string) (string, error) {
	if f.background {
		return backgroundLog(f.logFile, mountpoint)
	}
	if f.logFile == "" {
		return "", nil
	}
	return filepath.Abs(f.logFile)
}

func openReadable(c *config.Config) ([]*dataset.Dataset, error) {
	splits, err := dataset.Open(c)
	if err != nil {
		return nil, err
	}
	for _, s := range splits {
		if err := s.Unwritten(); err != nil {
			return nil, err
		}
		if err := s.TryRead(); err != nil {
			return nil, fmt.Errorf("splits.%s: a batch could not be read: %w", s.Split.Split, err)
		}
	}
	c.Remote().Flush() // the worker finds what was fetched here
	return splits, nil
}

// describe says in lines what is served.
func describe(mountpoint string, splits []*dataset.Dataset) []string {
	lines := []string{mountpoint + " serves"}
	for _, s := range splits {
		lines = append(lines, "  "+s.Summary())
	}
	next := filepath.Join(mountpoint, splits[0].Split.Split, "next")
	return append(lines, fmt.Sprintf("each open of %s is a fresh batch; %s/README says more", next, mountpoint))
}
