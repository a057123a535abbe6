package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"batchfs/cache/blocks"
	"batchfs/cache/localfile"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/metrics"
	"batchfs/fs"
	"batchfs/fs/state"
	"batchfs/fs/supervise"
)

// panicked is the exit status of a worker in which a request panicked. The supervisor replaces it.
const panicked exitStatus = 3

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
			switch err := serve(w, isRestart); {
			case err == nil, errors.Is(err, supervise.ErrReplaced):
				return nil
			case errors.Is(err, supervise.ErrPanicked):
				return panicked
			default:
				w.Refuse(err) // the supervisor tells the user
				return exitStatus(1)
			}
		},
	}
	// Ignore unknown flags, because the supervisor may be of another version. If the versions are
	// incompatible, a later error explains that better.
	cmd.FParseErrWhitelist.UnknownFlags = true
	cmd.Flags().BoolVar(&isRestart, "reload", false, "read the configuration again")
	return cmd
}

// serve serves the mount until it ends or another worker takes over.
func serve(w *supervise.Worker, isRestart bool) (err error) {
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
	o := dataset.NewOpener(c)
	o.Remote.Log = log
	o.Remote.Store.Counts = &w.Shared.Store
	localfile.Maps = &w.Shared.Maps
	localfile.Log = log
	o.Remote.Blocks.Counts = blocks.Counts{Blocks: &w.Shared.Blocks, Writes: &w.Shared.Writes}
	served, err := snapshot.Sequences(o, log, w.Publish)
	if err != nil {
		return err
	}
	var splits []fs.BatchList
	for _, s := range served {
		splits = append(splits, newSequence(s, w.Shared))
	}
	status := &statusReport{shared: w.Shared, log: snapshot.Log, budget: c.Memory.Budget, tableBytes: o.Tables.Bytes, blockBytes: o.Remote.MemoryBytes}
	portions := c.DivideBudget()
	return fs.Serve(w, snapshot.Mountpoint, splits, fs.Options{
		Memory: fs.Memory{PrefetchBatches: c.Memory.PrefetchBatches, PrefetchBytes: portions.Prefetch, ReplyBytes: portions.Replies, TextBytes: portions.OpenTexts},
		Access: fs.Permissions{
			Mode: c.Mount.Mode, UID: uint32(c.Mount.UID), GID: uint32(c.Mount.GID), SettingsPerUser: c.Mount.SettingsPerUser,
		},
		Status:  fs.Status{ProgramVersion: version(), JSON: status.json, Metrics: metrics.Text},
		Timeout: c.Mount.Timeout,
		Promoted: func() error {
			w.Shared.SetSchedule(snapshot.Generation)
			return check()
		},
		OnServing: func() { recordCacheUse(o.Remote.Blocks, &w.Shared.Gauges) },
		Log:       log,
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
	if snapshot, err = old.Reload(); err != nil {
		return nil, nil, err
	}
	if snapshot.Generation != old.Generation {
		check = (&scheduleCheck{old, snapshot, w.Shared, map[string]scheduleDifference{}}).run
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

// A sequence adapts a dataset.Served to fs.BatchList, and records which rows are read.
type sequence struct {
	*dataset.Served
	spec     fs.Spec
	shared   *state.Shared
	furthest func() *state.Furthest // nil if nothing needs to be recorded
}

func newSequence(s *dataset.Served, shared *state.Shared) *sequence {
	furthest := func() *state.Furthest { return nil }
	if settings := s.ScheduleSettings(); settings != "" {
		furthest = sync.OnceValue(func() *state.Furthest { return shared.FurthestFor(s.Split.Name, settings) })
	}
	return &sequence{s, fs.Spec{
		Name:           s.Split.Path(),
		Batch:          s.Sequence.Batch(),
		Batches:        s.Sequence.Batches(),
		Steps:          s.Steps,
		Start:          s.Split.Start,
		EpochBatches:   s.EpochBatches(),
		SourceNames:    s.Split.SourceNames(),
		Stages:         stages(s),
		TokensFileSize: s.TokensLen(),
		FilesSize:      s.Bytes(),
		TokensModified: s.TokensModified(),
		Modified:       s.BatchesModified(),
		Metadata:       s.Metadata(),
		Version:        fs.Version(s.Version),
		FollowsChanges: s.Split.OnChange == "follow",
	}, shared, furthest}
}

// Read records the rows before it computes them, so that no crash can come in between.
func (s *sequence) Read(dst []byte, k uint64, off int64) error {
	s.record(dst, k, off)
	return s.Served.Read(dst, k, off)
}

// record records the rows that Read would read.
func (s *sequence) record(dst []byte, k uint64, off int64) {
	if last := s.LastBatch(dst, k, off); last < s.spec.Batches {
		s.furthest().Record(s.Sequence.ScheduleRow(last, s.Sequence.BatchSize), s.spec.Name, last)
	}
}

func stages(s *dataset.Served) (list []fs.Stage) {
	if len(s.Split.Sources) == 0 {
		return nil
	}
	for _, at := range s.Sequence.Stages() {
		stage := fs.Stage{Batch: at.Batch}
		for source := range at.Rows {
			stage.Weights = append(stage.Weights, at.Fraction(source))
		}
		list = append(list, stage)
	}
	return list
}

func (s *sequence) Spec() *fs.Spec { return &s.spec }

func (s *sequence) Latest() (fs.BatchList, error) { return s.wrap(s.Served.Latest()) }

func (s *sequence) LatestWhole(cancel <-chan struct{}) (fs.BatchList, error) {
	return s.wrap(s.Served.LatestWhole(cancel))
}

func (s *sequence) LatestFor(k uint64, cancel <-chan struct{}) (fs.BatchList, error) {
	return s.wrap(s.Served.LatestFor(k, cancel))
}

// wrap returns the sequence of served, or s itself if served has not changed.
func (s *sequence) wrap(served *dataset.Served, err error) (fs.BatchList, error) {
	if served == s.Served {
		return s, err
	}
	return newSequence(served, s.shared), err
}

func (s *sequence) With(settings string) (fs.BatchList, error) {
	other, err := s.Served.With(settings)
	if err != nil {
		return nil, err
	}
	return newSequence(other, s.shared), nil
}
