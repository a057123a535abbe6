package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/fs"
)

func unmountCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unmount MOUNTPOINT",
		Short: "Unmount a batchfs and wait for its process to end",
		Long: `Unmount the batchfs at MOUNTPOINT and wait for the process that its status.json names to end. While a process has a
file open there nothing is done. Nothing but a batchfs is ever unmounted.`,
		Example: "  batchfs unmount /mnt/batches",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			mountpoint, err := resolve(args[0])
			if err != nil {
				return err
			}
			server := serverOf(mountpoint)
			switch err := fs.Unmount(mountpoint, false); {
			case errors.Is(err, syscall.EBUSY):
				return fmt.Errorf("%w: a process has a file open there, or works in it; fuser -vm %s names it", err, args[0])
			case err != nil:
				return err
			}
			if server >= 0 && !ended(server, grace) {
				return fmt.Errorf("%s is unmounted, but the process that served it has not ended", args[0])
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is unmounted\n", args[0])
			return nil
		},
	}
}

// serverOf returns a pidfd of the process that serves a mount, or -1 where it does not answer.
func serverOf(mountpoint string) int {
	found := make(chan int, 1)
	go func() {
		var status struct{ PID int }
		text, err := os.ReadFile(filepath.Join(mountpoint, "status.json"))
		if err != nil || json.Unmarshal(text, &status) != nil {
			found <- -1
			return
		}
		fd, err := unix.PidfdOpen(status.PID, 0)
		if err != nil {
			fd = -1
		}
		found <- fd
	}()
	select {
	case fd := <-found:
		return fd
	case <-time.After(time.Second): // a mount that hangs must still be unmounted
		return -1
	}
}

func ended(pidfd int, limit time.Duration) bool {
	for end := time.Now().Add(limit); ; {
		left := max(time.Until(end), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if err != unix.EINTR {
			return n == 1
		}
	}
}
