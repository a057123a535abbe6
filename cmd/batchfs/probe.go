package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/mount"
)

// splitsOf returns the splits of a mount as its supervisor knows them. It does not touch the mount.
func splitsOf(m *mount.Mounted) ([]*config.Split, error) {
	snapshot, err := snapshotOf(m)
	if err != nil {
		return nil, err
	}
	c, err := snapshot.Config()
	if err != nil {
		return nil, err
	}
	return c.Splits, nil
}

// probeSplit probes a split of a mount in another process: one that waits for a disk that is gone cannot end. The process runs as the
// mount's own do, because root can read files that they cannot.
func probeSplit(m *mount.Mounted, split *config.Split) (string, error) {
	user, err := m.Credential()
	if err != nil {
		return "", err
	}
	snapshot, err := m.Snapshot()
	if err != nil {
		return "", err
	}
	defer snapshot.Close()
	said, child, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer said.Close()
	cmd := exec.Command("/proc/self/exe", "probe", split.Name) // that user may not be able to follow the path of the program
	cmd.Stdout, cmd.ExtraFiles = child, []*os.File{snapshot}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // doctor may end first
	if int(user.Uid) != os.Geteuid() {
		cmd.SysProcAttr.Credential = user
	}
	err = cmd.Start()
	child.Close()
	if err != nil {
		return "", err
	}
	said.SetReadDeadline(time.Now().Add(checkLimit))
	text, err := io.ReadAll(said)
	if err != nil {
		cmd.Process.Kill() // and not waited for
		return "", errNoReply(checkLimit, storageHint(split))
	}
	if err := cmd.Wait(); err != nil {
		return "", errors.New(cmp.Or(string(text), "the process that looked ended: "+err.Error()))
	}
	return string(text), nil
}

// probeCommand probes a split of a mount, for probeSplit, which starts it with a snapshot open.
func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "probe SPLIT",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			detail, err := probe(os.NewFile(3, "snapshot"), args[0])
			if err != nil {
				fmt.Fprint(cmd.OutOrStdout(), err)
				return exitStatus(1)
			}
			fmt.Fprint(cmd.OutOrStdout(), detail)
			return nil
		},
	}
}

func probe(file *os.File, split string) (string, error) {
	snapshot, err := dataset.ReadSnapshot(file)
	if err != nil {
		return "", err
	}
	c, err := snapshot.Config()
	if err != nil {
		return "", err
	}
	s, err := c.Named(split)
	if err != nil {
		return "", err
	}
	d, err := snapshot.Readable(s, dataset.NewOpener(c))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%w; put the file back, or unmount, and mount again with the files that are there", err)
	}
	if err != nil {
		return "", withPermission(err)
	}
	return d.Counted(), nil
}
