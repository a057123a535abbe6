package main

import (
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/fs"
)

// workerCommand serves a mount for the keeper that started it.
func workerCommand() *cobra.Command {
	var anew bool
	cmd := &cobra.Command{
		Use:    "worker",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// It ends with its keeper, who decides when; and writing to a terminal (stty tostop) must not stop it.
			signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTTOU)
			w, err := fs.Inherit()
			if err != nil {
				return err
			}
			if err := serve(w, anew); err != nil {
				w.Refuse(err)
				os.Exit(1) // the keeper tells
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&anew, "anew", false, "read the configuration anew")
	return cmd
}

func serve(w *fs.Worker, anew bool) error {
	os.WriteFile("/proc/self/comm", []byte("batchfs"), 0) // which was the name of a descriptor
	if os.Getenv("GOGC") == "" {
		// There is little garbage and hardly a heap: to collect often costs nothing, and what stays resident is the same
		// after a million batches as after the first thousands.
		debug.SetGCPercent(25)
	}
	taken, err := readSnapshot(w.Snapshot)
	if err != nil {
		return err
	}
	if anew {
		if taken, err = taken.anew(); err != nil {
			return err
		}
		file, err := taken.file()
		if err != nil {
			return err
		}
		if err := w.Publish(file); err != nil {
			return err
		}
	}
	os.Chdir("/")
	c, err := taken.config()
	if err != nil {
		return err
	}
	splits, err := taken.splits(c)
	if err != nil {
		return err
	}
	log := newLog(os.Stderr, c.Log).With("mountpoint", taken.Mountpoint)
	p := &publisher{publish: w.Publish, now: taken}
	var directories []*fs.Sequence
	for _, s := range splits {
		l := &live{memory: c.Memory, log: log, changed: p.changed, now: s}
		directories = append(directories, l.directory(s))
	}
	return w.Serve(taken.Mountpoint, directories, fs.Options{
		Version: version(), Ahead: c.Memory.Ahead, AheadBytes: c.Memory.AheadBytes, Timeout: c.Mount.Timeout, Log: log,
		Mode: c.Mount.Mode, UID: uint32(c.Mount.UID), GID: uint32(c.Mount.GID),
	})
}
