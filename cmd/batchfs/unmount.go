package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/cmd/batchfs/command"
	"batchfs/fs/mount"
	"batchfs/internal/printable"
)

func unmountCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "unmount MOUNTPOINT",
		Short: "Unmount a batchfs mount and wait for its processes to end",
		Long: `Unmount the batchfs mount at MOUNTPOINT and wait for its processes to end. If a process
has files open there, batchfs unmounts nothing and lists these processes. With
--force it unmounts anyway, and they get errors. A mount whose processes have died
is always unmounted. Other file systems are never unmounted.

A process in another mount namespace, such as a container, may hold the mount too.
The mount then lives on there, and the error says how to find that process and how
to end the mount. With --force the mount ends everywhere at once.

A mount that another process made (mount --fd) is no longer served, but the process
that made it must unmount it.`,
		Example: `  batchfs unmount /mnt/batches
  batchfs unmount --force /mnt/batches`,
		Args: cobra.ExactArgs(1),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			m, err := mount.At(args[0])
			if err != nil {
				return err
			}
			if euid := os.Geteuid(); euid != 0 && euid != m.Owner {
				return fmt.Errorf("%s: only user %d, who mounted it, and root can unmount it", args[0], m.Owner)
			}
			if m.HandedOver {
				return endHandedOver(cmd.OutOrStdout(), m, force)
			}
			os.Chdir("/") // a working directory in the mount would keep it busy
			if err := unmount(m, args[0], force); err != nil {
				return err
			}
			printf(cmd.OutOrStdout(), "%s is unmounted\n", args[0])
			return nil
		}),
		ValidArgsFunction: command.DirCompletion,
	}
	cmd.Flags().BoolVar(&force, "force", false, "unmount even if processes have files open there")
	return cmd
}

func unmount(m *mount.Mounted, path string, force bool) error {
	// Open the supervisor before unmounting, because only the mount records its process.
	supervisor, err := m.Pidfd()
	var stopped error
	if err == nil {
		stopped = m.CheckRunning()
	}
	if stopped != nil && !force {
		return stopped
	}
	dead := m.IsDead()
	if err != nil && !errors.Is(err, mount.ErrDead) && !dead {
		return err
	}
	force = force || dead
	err = m.Unmount(false)
	if errors.Is(err, syscall.EBUSY) {
		if !force {
			return fmt.Errorf("%w:\n%s\nend them, or unmount anyway with: batchfs unmount --force %s", err,
				strings.Join(m.OpenedBy(), "\n"), printable.ShellArg(path))
		}
		err = m.Unmount(true)
	}
	if err != nil {
		return err
	}
	if stopped != nil {
		unix.PidfdSendSignal(supervisor, unix.SIGTERM, nil, 0)
		return fmt.Errorf("%s is unmounted, but its supervisor, process %d, is stopped; let it end with: kill -CONT %[2]d", path, m.Supervisor)
	}
	if supervisor >= 0 && !awaitEnd(supervisor, force) {
		return fmt.Errorf("%s is unmounted here, but process %[2]d still serves it: it may be mounted in another namespace too; "+
			"to find that, run as root: grep ' %[3]s ' /proc/[0-9]*/mountinfo; to end it everywhere: kill %[2]d", path, m.Supervisor, m.Device)
	}
	return nil
}

// endHandedOver stops serving a mount that another process made.
func endHandedOver(out io.Writer, m *mount.Mounted, force bool) error {
	supervisor, err := m.Pidfd()
	if err != nil {
		return err
	}
	if err := m.CheckRunning(); err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(supervisor, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("process %d, the supervisor of %s: %w", m.Supervisor, m.Mountpoint, err)
	}
	if !awaitEnd(supervisor, force) {
		return fmt.Errorf("%s: process %d lets readers finish, for mount.grace or until the process that mounted it unmounts it; "+
			"to end it now: batchfs unmount --force %s", m.Mountpoint, m.Supervisor, printable.ShellArg(m.Mountpoint))
	}
	printf(out, "%s is no longer served; the process that mounted it must unmount it\n", m.Mountpoint)
	return nil
}

// awaitEnd waits up to 10 s for a process to end, and reports whether it did. With force it keeps
// sending SIGTERM, so that the process ends even while files are open.
func awaitEnd(pidfd int, force bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if force {
			unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0)
		}
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100); n == 1 && err == nil {
			return true
		}
	}
	return false
}
