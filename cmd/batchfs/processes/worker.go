package processes

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/metrics"
	"batchfs/fs"
	"batchfs/fs/supervise"
)

// panicked is the exit status of a worker in which a request panicked. The supervisor replaces it.
const panicked command.ExitStatus = 3

func workerCommand() *cobra.Command {
	var isRestart bool
	cmd := &cobra.Command{
		Use:    "worker",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Only the supervisor decides when a worker ends. Output to a terminal must not stop it
			// (stty tostop).
			signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTTOU)
			w, err := supervise.ConnectSupervisor()
			if err != nil {
				return err
			}
			switch err := runWorker(w, cmd.Root().Version, isRestart); {
			case err == nil, errors.Is(err, supervise.ErrReplaced):
				return nil
			case errors.Is(err, supervise.ErrPanicked):
				return panicked
			default:
				w.Refuse(err) // the supervisor tells the user
				return command.PrintedError{Err: err}
			}
		},
	}
	// Ignore unknown flags, because the supervisor may be of another version. If the versions are
	// incompatible, a later error explains that better.
	cmd.FParseErrWhitelist.UnknownFlags = true
	cmd.Flags().BoolVar(&isRestart, "restart", false, "read the configuration again")
	return cmd
}

// runWorker serves the mount until it ends or another worker takes over.
func runWorker(w *supervise.Worker, version string, isRestart bool) (err error) {
	defer func() {
		// The supervisor would mistake Go's exit status after a panic, 2, for a lack of memory.
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	// The kernel may have named this process after a descriptor in /proc/self/fd.
	os.WriteFile("/proc/self/comm", []byte("batchfs"), 0)
	snapshot, check, err := readSnapshot(w, isRestart)
	if err != nil {
		return err
	}
	os.Chdir("/")
	c, err := snapshot.Config()
	if err != nil {
		return err
	}
	log, flush := newLog(os.Stderr, c.Log, snapshot.Mountpoint)
	defer flush()
	o := dataset.NewMountOpener(c, w.Shared, log)
	splits, err := snapshot.MountedSequences(o, log, w.Shared, w.Publish)
	if err != nil {
		return err
	}
	warn := func() {}
	if isRestart { // the supervisor warns when the first worker serves
		warn = snapshot.UnleasedWarning(c, log)
	}
	status := &statusReport{shared: w.Shared, log: snapshot.Log, budget: c.Memory.Budget, tableBytes: o.Tables.Bytes, blockBytes: o.Remote.MemoryBytes}
	portions := c.DivideBudget()
	return fs.Serve(w, snapshot.Mountpoint, splits, fs.Options{
		Memory: fs.Memory{PrefetchBatches: c.Memory.PrefetchBatches, PrefetchBytes: portions.Prefetch, ReplyBytes: portions.Replies,
			TextBytes: portions.OpenTexts},
		Access: fs.Permissions{
			Mode: c.Mount.Mode, UID: uint32(c.Mount.UID), GID: uint32(c.Mount.GID), SettingsPerUser: c.Mount.SettingsPerUser,
		},
		Status:  fs.Status{ProgramVersion: version, JSON: status.json, Metrics: metrics.Text},
		Timeout: c.Mount.Timeout,
		Promoted: func() error { // the worker before has ended
			// Before the check: batchfs cat records its rows and then compares the generation, so
			// it ends, or the check finds its rows.
			w.Shared.SetScheduleGeneration(snapshot.Generation)
			return check()
		},
		OnServing: func() {
			warn()
			recordCacheUse(o.Remote.Blocks, &w.Shared.Gauges)
		},
		Log: log,
	})
}

// readSnapshot returns the supervisor's snapshot. If isRestart is true, it reads the configuration
// again, and gives the supervisor the resulting snapshot. It checks that no row that was read from
// the mount has changed; check does so again.
func readSnapshot(w *supervise.Worker, isRestart bool) (snapshot *dataset.Snapshot, check func() error, err error) {
	check = func() error { return nil }
	old, err := dataset.ReadSnapshot(w.Snapshot)
	if err != nil || !isRestart {
		return old, check, err
	}
	if snapshot, err = old.ForRestart(); err != nil {
		return nil, nil, err
	}
	if snapshot.Generation != old.Generation {
		c, err := dataset.NewScheduleCheck(old, snapshot, w.Shared)
		if err != nil {
			return nil, nil, err
		}
		check = c.Run
	}
	if err := check(); err != nil {
		return nil, nil, err
	}
	file, err := snapshot.File()
	if err != nil {
		return nil, nil, err
	}
	return snapshot, check, w.Publish(file)
}
