package doctor

import (
	"bytes"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/fs/mount"
	"batchfs/internal/failure"
)

// SplitsOf returns the splits of a mount from its supervisor's snapshot. It does not touch the
// mount.
func SplitsOf(m *mount.Mounted) ([]*config.Split, error) {
	snapshot, err := dataset.SnapshotOf(m)
	if err != nil {
		return nil, err
	}
	c, err := snapshot.Config()
	if err != nil {
		return nil, err
	}
	return c.Splits, nil
}

// ProbeSplit describes the token files of a split, or returns an error if the mount cannot read
// them or they have changed. It uses a child process, because a process that waits for a dead disk
// cannot end. The child runs as the mount's user, because root can read files that this user
// cannot.
func ProbeSplit(m *mount.Mounted, split *config.Split) (string, error) {
	user, err := m.Credential()
	if err != nil {
		return "", err
	}
	snapshot, err := m.Snapshot()
	if err != nil {
		return "", err
	}
	defer snapshot.Close()
	output, child, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer output.Close()
	// The mount's user might have no access to the path of the program.
	cmd := exec.Command("/proc/self/exe", "probe", "--", split.Name)
	cmd.Stdout, cmd.ExtraFiles = child, []*os.File{snapshot}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the command may end first
	if int(user.Uid) != os.Geteuid() {
		cmd.SysProcAttr.Credential = user
	}
	err = cmd.Start()
	child.Close()
	if err != nil {
		return "", err
	}
	output.SetReadDeadline(time.Now().Add(checkTimeout))
	answer, err := io.ReadAll(output)
	if err != nil {
		cmd.Process.Kill() // no Wait: the process may be stuck
		return "", failure.Data.Wrap(errNoReply(checkTimeout, storageHint(split)))
	}
	err = cmd.Wait()
	var r command.Report
	if err := cmp.Or(err, gob.NewDecoder(bytes.NewReader(answer)).Decode(&r)); err != nil {
		return "", fmt.Errorf("the process that checked the files died: %w", err)
	}
	if r.Kind != command.Ready {
		return "", r.Err()
	}
	return r.Message, nil
}

// ProbeCommand returns the hidden command that ProbeSplit starts, with the snapshot open as
// descriptor 3. It writes a gob-encoded report to standard output.
func ProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "probe SPLIT",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			detail, err := probe(os.NewFile(3, "snapshot"), args[0])
			r := &command.Report{Kind: command.Ready, Message: detail}
			if err != nil {
				r = command.NewReport(err)
			}
			return gob.NewEncoder(cmd.OutOrStdout()).Encode(r)
		},
	}
}

// probe runs in the child process of ProbeSplit. file holds the encoded snapshot.
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
		err = fmt.Errorf("%w; put the file back, or unmount and mount again with the current files", err)
	} else if err != nil {
		err = withPermissionFix(err)
	}
	if err != nil {
		return "", failure.Data.Wrap(err)
	}
	return d.SizeSummary(), nil
}
