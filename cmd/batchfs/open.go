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
	"github.com/spf13/pflag"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
)

// opened is what the open command sends to the process that started it.
type opened struct {
	Snapshot    *dataset.Snapshot
	Description []string // lines that tell people what is served
}

// openInChild reads the configuration and checks the token files in a child process. A process that
// waits for a disk that does not answer cannot end, but a mount that is starting must end when it
// is told to. The child is killed when this process ends. It gets the flags that were set here.
func openInChild(flags *pflag.FlagSet, mountpoint []string) (*dataset.Snapshot, []string, error) {
	args := []string{"open"}
	flags.Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+flag.Name+"="+value)
		}
	})
	cmd := exec.Command("/proc/self/exe", append(append(args, "--"), mountpoint...)...)
	cmd.Args[0] = os.Args[0]
	// The child gets pipes, so that readers of this process's output never wait for the child to
	// end.
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, &out, &stderr
	// In a process group of its own, the child could not read a configuration from the terminal. So
	// it shares this group and ignores Ctrl-C.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	os.Stderr.Write(stderr.Bytes()) // warnings, such as a cache directory that fails
	if err != nil {
		return nil, nil, errors.New(cmp.Or(out.String(), fmt.Sprintf("the process that opened the files ended: %v", err)))
	}
	var o opened
	err = gob.NewDecoder(&out).Decode(&o)
	return o.Snapshot, o.Description, err
}

// openCommand returns the hidden command that openInChild runs. It writes an opened as a gob, or
// else the text of the error.
func openCommand() *cobra.Command {
	var f mountFlags
	cmd := &cobra.Command{
		Use:    "open [MOUNTPOINT]",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // the process that started this one decides
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
	snapshot.NoResend = f.noResend
	snapshot.Log, err = f.logPath(mountpoint)
	return &opened{snapshot, describe(mountpoint, splits)}, err
}

// place returns the absolute path of the mountpoint. It checks one that is not mounted yet.
func (f *mountFlags) place(c *config.Config) (mountpoint string, err error) {
	if f.fd >= 0 {
		return filepath.Abs(c.Mountpoint) // a check would hang: no worker serves the mount yet
	}
	return checkMountpoint(c, f.logFile)
}

// logPath returns the absolute path of the log, or an empty string for standard error.
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
	c.Remote().Flush() // so that the worker finds what was fetched here
	return splits, nil
}

// describe returns lines that tell people what is served.
func describe(mountpoint string, splits []*dataset.Dataset) []string {
	lines := []string{mountpoint + " serves"}
	for _, s := range splits {
		lines = append(lines, "  "+s.Summary())
	}
	next := filepath.Join(mountpoint, splits[0].Split.Split, "next")
	return append(lines, fmt.Sprintf("each open of %s is a fresh batch; %s/README says more", next, mountpoint))
}
