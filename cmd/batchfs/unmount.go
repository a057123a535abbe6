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

	"batchfs/fs/mount"
)

func unmountCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "unmount MOUNTPOINT",
		Short: "Unmount a batchfs and wait for its processes to end",
		Long: `Unmount the batchfs at MOUNTPOINT and wait for its processes to end. While a process has a file open there nothing is done,
but to say which; with --force it is unmounted nevertheless, and they get errors. A mount whose process is gone is always
unmounted, and nothing but a batchfs ever is.

A process with a mount namespace of its own, such as a container, may hold the mount too. It then lives on there, and the error
says how to find it and to end it. With --force it ends everywhere at once.

A mount that was handed over (mount --fd) is not unmounted, but served no more: unmounting is up to whoever mounted.`,
		Example: `  batchfs unmount /mnt/batches
  batchfs unmount --force /mnt/batches`,
		Args: cobra.ExactArgs(1),
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			m, err := mountedAt(args[0])
			if err != nil {
				return err
			}
			if euid := os.Geteuid(); euid != 0 && euid != m.Owner {
				return fmt.Errorf("%s: only user %d, who mounted it, and root can unmount it", args[0], m.Owner)
			}
			if m.HandedOver {
				return endHandedOver(cmd.OutOrStdout(), m, force)
			}
			if err := unmount(m, args[0], force); err != nil {
				return err
			}
			printf(cmd.OutOrStdout(), "%s is unmounted\n", args[0])
			return nil
		}),
		ValidArgsFunction: directories,
	}
	cmd.Flags().BoolVar(&force, "force", false, "unmount under processes that have files open there")
	return cmd
}

func unmount(m *mount.Mounted, path string, force bool) error {
	// The process must be opened before unmounting, because only the mount names it.
	supervisor, err := m.Pidfd()
	var stopped error
	if err == nil {
		stopped = checkRunning(m)
	}
	if stopped != nil && !force {
		return stopped
	}
	dead := m.IsDead()
	if err != nil && !errors.Is(err, mount.ErrDead) && !dead {
		return fmt.Errorf("%s: %w", path, err)
	}
	force = force || dead
	err = m.Unmount(false)
	if errors.Is(err, syscall.EBUSY) {
		if !force {
			return fmt.Errorf("%w:\n%s\nend them, or unmount it under them with: batchfs unmount --force %s", err, strings.Join(m.OpenedBy(), "\n"), path)
		}
		err = m.Unmount(true)
	}
	if err != nil {
		return err
	}
	if stopped != nil {
		unix.PidfdSendSignal(supervisor, unix.SIGTERM, nil, 0)
		return fmt.Errorf("%s is unmounted, but process %d, which kept the mount, is stopped; it ends after: kill -CONT %[2]d", path, m.Supervisor)
	}
	if supervisor >= 0 && !ended(supervisor, force) {
		return fmt.Errorf("%s is unmounted here, but process %[2]d keeps it: it may be mounted elsewhere too, where as root "+
			"grep ' %[3]s ' /proc/[0-9]*/mountinfo says; to end it everywhere: kill %[2]d", path, m.Supervisor, m.Device)
	}
	return nil
}

// endHandedOver ends the connection of a mount that another process made.
func endHandedOver(out io.Writer, m *mount.Mounted, force bool) error {
	supervisor, err := m.Pidfd()
	if err != nil {
		return fmt.Errorf("%s: %w", m.Mountpoint, err)
	}
	if err := checkRunning(m); err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(supervisor, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("process %d, which keeps %s: %w", m.Supervisor, m.Mountpoint, err)
	}
	if !ended(supervisor, force) {
		return fmt.Errorf("%s: process %d lets readers finish for mount.grace, or until the process that mounted it unmounts; "+
			"to end at once: batchfs unmount --force %[1]s", m.Mountpoint, m.Supervisor)
	}
	printf(out, "%s is served no more; the process that mounted it must unmount it\n", m.Mountpoint)
	return nil
}

// ended waits up to 10 s for a process to end. With force it tells the process to end at once, even if files are open.
func ended(pidfd int, force bool) bool {
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
