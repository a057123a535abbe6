package dataset

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"batchfs/cache"
	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/config"
	"batchfs/fs"
	"batchfs/fs/state"
	"batchfs/sampler"
)

// A MountedSplit is a split, possibly under the settings of a path, as a mount serves it: an
// [fs.Split]. It is safe for concurrent use.
type MountedSplit struct {
	watch   *watcher
	shared  *state.Shared             // records which rows are read
	current atomic.Pointer[BatchList] // replaced with mu held

	mu       sync.Mutex // held while onChange is called
	onChange func(fs.BatchList)
}

func newMountedSplit(d *Dataset, w *watcher, shared *state.Shared) *MountedSplit {
	s := &MountedSplit{watch: w, shared: shared, onChange: func(fs.BatchList) {}}
	s.current.Store(newBatchList(d, w.mountpoint, shared))
	return s
}

// Current returns the batches that another method returned last.
func (s *MountedSplit) Current() fs.BatchList { return s.current.Load() }

// OnChange sets a function that gets the batches of changed token files before any request does.
func (s *MountedSplit) OnChange(f func(fs.BatchList)) { s.onChange = f }

// With returns the split under the settings of a path component; see [Dataset.With].
func (s *MountedSplit) With(settings string) (fs.Split, error) {
	b, _ := s.latest(s.watch.view.Load()) // reads of batches report the error
	d, err := b.Dataset.With(settings)
	if err != nil {
		return nil, err
	}
	return newMountedSplit(d, s.watch, s.shared), nil
}

// Latest returns the batches of the token files that the watcher has opened last. If no batch can
// be read, it also returns an error: a file has changed or cannot be read and the split does not
// follow changes, or the settings do not fit the new tokens.
func (s *MountedSplit) Latest() (fs.BatchList, error) { return s.latest(s.watch.currentView(nil)) }

func (s *MountedSplit) latest(v *view) (*BatchList, error) {
	b := s.current.Load()
	if err := s.watch.recheckWrongFile(v); err != nil || v.dataset.Version == b.Version {
		return b, err
	}
	return s.follow(v.dataset)
}

// follow makes d, a later version of the split, the current one.
func (s *MountedSplit) follow(d *Dataset) (*BatchList, error) {
	if old := s.current.Load(); old.Split.InPath() {
		var err error
		if d, err = d.withSettings(old.Split); err != nil {
			return old, fmt.Errorf("the token files changed, and these settings do not fit the new ones: %w (%w)", err, syscall.ESTALE)
		}
	}
	b := newBatchList(d, s.watch.mountpoint, s.shared)
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.current.Load(); now.Version >= d.Version { // another request was faster
		return now, nil
	}
	s.onChange(b)
	s.current.Store(b)
	return b, nil
}

// LatestWhole is like Latest, for files of the mount that have several batches. It also returns an
// error if some token file cannot be checked, or if a change could not be followed. If the split
// was idle, both functions wait up to a second for a check of its files; LatestWhole stops waiting
// when cancel is closed.
func (s *MountedSplit) LatestWhole(cancel <-chan struct{}) (fs.BatchList, error) {
	v := s.watch.currentView(cancel)
	b, err := s.latest(v)
	if err == nil && v.wrongFile == nil {
		err = v.err
	}
	return b, err
}

// LatestFor is like Latest, but also checks the files of batch k. If they have changed and the
// split follows changes, it waits until the new files are open, or until cancel is closed. If they
// cannot be served, the error matches syscall.ESTALE.
func (s *MountedSplit) LatestFor(k uint64, cancel <-chan struct{}) (_ fs.BatchList, err error) {
	var b *BatchList
	waited := false // for a process that writes to the file
	for range maxReopens {
		v := s.watch.currentView(cancel)
		if b, err = s.latest(v); err != nil {
			return b, err
		}
		var wrongFile blob.Blob
		// No file has batches beyond the end, and reading them fails.
		if wrongFile, err = b.checkBatch(min(k, b.spec.Batches-1)); err == nil {
			return b, nil
		}
		if failure := s.watch.retryOrFail(v, wrongFile, err, waited, cancel); failure != nil {
			return b, failure
		}
		waited = waited || v.beingWritten
		select {
		case <-cancel:
			return b, err
		default:
		}
	}
	return b, err
}

// Stalled returns how long the current check of all files has been waiting for one, or 0.
func (s *MountedSplit) Stalled() time.Duration { return s.watch.stalledFor() }

// A BatchList has the batches of a Dataset, and the other files that a mount derives from it: it is
// an [fs.BatchList]. It is immutable and safe for concurrent use.
type BatchList struct {
	*Dataset
	spec fs.Spec
	// These functions compute their result when they are first called. furthest returns nil if the
	// rows that are read need not be recorded. workingSet and prefetcher are nil unless an array is
	// in a store.
	furthest   func() *state.Furthest
	origins    func() *Origins
	infoLen    func() int64
	workingSet func() *cache.WorkingSet
	prefetcher *blockPrefetcher
}

// Batches returns the batches for a reader without a mount. If token files change, reads fail, even
// with on_change = "follow". If shared is not nil, it is the state of a mount of the same split, in
// which reads are recorded.
func (d *Dataset) Batches(shared *state.Shared) *BatchList { return newBatchList(d, "", shared) }

func newBatchList(d *Dataset, mountpoint string, shared *state.Shared) *BatchList {
	b := &BatchList{
		Dataset:  d,
		spec:     d.spec(),
		furthest: func() *state.Furthest { return nil },
		origins:  sync.OnceValue(d.Origins),
		infoLen:  sync.OnceValue(func() int64 { return int64(len(d.Info())) }),
	}
	if settings := d.ScheduleSettings(); settings != "" && shared != nil {
		b.furthest = sync.OnceValue(func() *state.Furthest { return shared.FurthestFor(d.Split.Name, settings) })
	}
	if d.isRemote() {
		b.workingSet = sync.OnceValue(func() *cache.WorkingSet { return d.WorkingSet(filepath.Join(mountpoint, d.Split.Path())) })
		b.prefetcher = newBlockPrefetcher(d)
	}
	return b
}

// ScheduleSettings returns settings that lead from the split to a sequence with the same schedule.
// They are equal for all sequences whose rows come from the same sources in the same order. With
// source, there is only one order, so that they are empty.
func (d *Dataset) ScheduleSettings() string {
	s := d.Split
	if s.Only > 0 {
		return ""
	}
	settings, inPath := map[string]any{}, s.Values()
	for _, key := range config.KeysOn(config.OnRows, config.OnBytes) {
		if value, ok := inPath[key]; ok {
			settings[key] = value
		}
	}
	// One rank reads all rows of its host, in whatever order and dtype.
	settings["batch_size"], settings["rank"], settings["world"], settings["local_world"] = 1, 0, d.Sequence.Hosts(), 1
	settings["shuffle_block"] = s.ShuffleBlock
	delete(settings, "seed")
	delete(settings, "dtype")
	if s.ShuffleBlock == 0 { // which needs order = "shuffle"
		delete(settings, "order")
	}
	return config.JoinSettings(settings)
}

func (d *Dataset) spec() fs.Spec {
	return fs.Spec{
		Name:           d.Split.Path(),
		Batch:          d.Sequence.Batch(),
		Batches:        d.Sequence.Batches(),
		Steps:          d.Steps,
		MaxSteps:       d.MaxSteps(),
		Start:          d.Split.Start,
		EpochBatches:   d.EpochBatches(),
		SourceNames:    d.Split.SourceNames(),
		Stages:         d.specStages(),
		TokensFileSize: d.TokensLen(),
		FilesSize:      d.Bytes(),
		TokensModified: d.TokensModified(),
		Modified:       d.BatchesModified(),
		Metadata:       d.Metadata(),
		Version:        fs.Version(d.Version),
		FollowsChanges: d.Split.OnChange == "follow",
	}
}

func (d *Dataset) specStages() (list []fs.Stage) {
	if len(d.Split.Sources) == 0 {
		return nil
	}
	for _, at := range d.Sequence.Phases() {
		stage := fs.Stage{Batch: at.Batch}
		for source := range at.Rows {
			stage.Weights = append(stage.Weights, at.Fraction(source))
		}
		list = append(list, stage)
	}
	return list
}

// Spec describes the batches.
func (b *BatchList) Spec() *fs.Spec { return &b.spec }

// Read fills dst with the bytes of batches k, k+1, …, starting at byte off of batch k. Before it
// computes them, it records which rows it reads, so that no crash can come in between. If the
// tokens are in a store, it also prefetches the blocks of the next batches. Beyond the end of the
// sequence, the error matches syscall.ENODATA.
func (b *BatchList) Read(dst []byte, k uint64, off int64) error {
	end := off + int64(len(dst))
	last := k + uint64(max(end-1, 0)/b.spec.Batch.Bytes())
	if err := b.CheckEnd(last); err != nil {
		return err
	}
	if last < b.spec.Batches {
		b.furthest().Record(b.Sequence.ScheduleRow(last, b.Sequence.BatchSize), b.spec.Name, last)
	}
	if b.prefetcher != nil {
		if set := b.workingSet(); set != nil {
			set.Touch()
		}
		b.prefetcher.batchRead(k + uint64(end/b.spec.Batch.Bytes()))
	}
	return b.Sequence.Read(dst, k, off)
}

// CheckEnd returns an error, which matches syscall.ENODATA, if the sequence ends before batch k.
func (d *Dataset) CheckEnd(k uint64) error {
	if n := d.Sequence.Batches(); k < n || n == sampler.MaxBatches {
		return nil
	}
	return fmt.Errorf("%s has no batch %d, because every source has used up its max_epochs: raise it, or add a source (%w)", d.Split.Path(), k, syscall.ENODATA)
}

// Check returns an error if the files of batch k have changed.
func (b *BatchList) Check(k uint64) error {
	_, err := b.checkBatch(k)
	return err
}

// ReadBatchJSON fills dst with batch/<k>.json, starting at byte off; see [Origins.Read].
func (b *BatchList) ReadBatchJSON(dst []byte, k uint64, off int64) error {
	return b.origins().Read(dst, k, off)
}

// BatchJSONLen returns the size of every batch/<k>.json in bytes.
func (b *BatchList) BatchJSONLen() int64 { return b.origins().Len() }

// InfoLen returns the size of info.json in bytes.
func (b *BatchList) InfoLen() int64 { return b.infoLen() }

// RowsOf returns the number of rows of batch k that come from a source.
func (b *BatchList) RowsOf(source int, k uint64) uint64 { return b.Sequence.RowsOf(source, k) }
