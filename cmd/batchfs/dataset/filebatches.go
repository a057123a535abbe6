package dataset

import (
	"path/filepath"
	"sync"

	"batchfs/cache"
	"batchfs/fs"
	"batchfs/fs/state"
)

// A FileBatches is the [fs.BatchList] of a Dataset: its batches, and what else a mount shows of it.
// It is immutable and safe for concurrent use.
type FileBatches struct {
	*Dataset
	spec fs.Spec
	// These functions compute their result when they are first called. rowsRecord returns nil if
	// the rows that are read need not be recorded. workingSet and prefetcher are nil unless an
	// array is in a store.
	rowsRecord func() *state.RowsRecord
	origins    func() *Origins
	infoLen    func() int64
	workingSet func() *cache.WorkingSet
	prefetcher *blockPrefetcher
}

// FileBatches returns the batches for a process that computes them itself. If token files change,
// reads fail, even with on_change = "follow". If shared is not nil, it is the state of a mount of
// the same split, in which reads are recorded.
func (d *Dataset) FileBatches(shared *state.Shared) *FileBatches {
	return newFileBatches(d, "", shared)
}

func newFileBatches(d *Dataset, mountpoint string, shared *state.Shared) *FileBatches {
	b := &FileBatches{
		Dataset:    d,
		spec:       d.spec(),
		rowsRecord: func() *state.RowsRecord { return nil },
		origins:    sync.OnceValue(d.Origins),
		infoLen:    sync.OnceValue(func() int64 { return int64(len(d.Info())) }),
	}
	if settings := d.ScheduleSettings(); settings != "" && shared != nil {
		b.rowsRecord = sync.OnceValue(func() *state.RowsRecord { return shared.RecordFor(d.Split.Name, settings) })
	}
	if d.isRemote() {
		b.workingSet = sync.OnceValue(func() *cache.WorkingSet { return d.WorkingSet(filepath.Join(mountpoint, d.Split.Path())) })
		b.prefetcher = newBlockPrefetcher(d)
	}
	return b
}

func (d *Dataset) spec() fs.Spec {
	return fs.Spec{
		Name:           d.Split.Path(),
		Note:           d.longDocumentsNote(),
		Batch:          d.Sequence.Batch(),
		Batches:        d.Sequence.Batches(),
		Steps:          d.Steps,
		MaxSteps:       d.MaxSteps(),
		Start:          d.Split.Start,
		EpochBatches:   d.EpochBatches(),
		SourceNames:    d.Split.SourceNames(),
		Phases:         d.specPhases(),
		TokensFileSize: d.TokensLen(),
		FilesSize:      d.Bytes(),
		TokensModified: d.TokensModified(),
		Modified:       d.BatchesModified(),
		Metadata:       d.Metadata(),
		Version:        fs.Version(d.Version),
		FollowsChanges: d.Split.OnChange == "follow",
	}
}

func (d *Dataset) specPhases() (list []fs.Phase) {
	if len(d.Split.Sources) == 0 {
		return nil
	}
	for _, at := range d.Sequence.Phases() {
		phase := fs.Phase{Batch: at.Batch}
		for source := range at.Rows {
			phase.Weights = append(phase.Weights, at.Fraction(source))
		}
		list = append(list, phase)
	}
	return list
}

// Spec describes the batches.
func (b *FileBatches) Spec() *fs.Spec { return &b.spec }

// Read fills dst with the bytes of batches k, k+1, …, starting at byte off of batch k. Before it
// computes them, it records which rows it reads, so that no crash can come in between. If the
// tokens are in a store, it also prefetches the blocks of the next batches. Beyond the end of the
// sequence, the error matches syscall.ENODATA.
func (b *FileBatches) Read(dst []byte, k uint64, off int64) error {
	end := off + int64(len(dst))
	last := k + uint64(max(end-1, 0)/b.spec.Batch.Bytes())
	if err := b.CheckEnd(last); err != nil {
		return err
	}
	lastRow := b.Sequence.ScheduleRow(last, b.Sequence.BatchSize-1)
	b.rowsRecord().Record(rowsThrough(lastRow), b.spec.Name, last)
	if b.prefetcher != nil {
		if set := b.workingSet(); set != nil {
			set.Touch()
		}
		b.prefetcher.batchRead(k + uint64(end/b.spec.Batch.Bytes()))
	}
	return b.Sequence.Read(dst, k, off)
}

// rowsThrough returns the number of rows up to and including row, at most math.MaxUint64.
func rowsThrough(row uint64) uint64 { return max(row, row+1) } // row+1 may be 0

// Check returns an error if the files of batch k have changed.
func (b *FileBatches) Check(k uint64) error {
	_, err := b.checkBatch(k)
	return err
}

// ReadBatchJSON fills dst with batch/<k>.json, starting at byte off; see [Origins.Read].
func (b *FileBatches) ReadBatchJSON(dst []byte, k uint64, off int64) error {
	if err := b.CheckEnd(k); err != nil {
		return err
	}
	return b.origins().Read(dst, k, off)
}

// BatchJSONLen returns the size of every batch/<k>.json in bytes.
func (b *FileBatches) BatchJSONLen() int64 { return b.origins().Len() }

// InfoLen returns the size of info.json in bytes.
func (b *FileBatches) InfoLen() int64 { return b.infoLen() }

// RowsOf returns the number of rows of batch k that come from a source.
func (b *FileBatches) RowsOf(source int, k uint64) uint64 { return b.Sequence.RowsOf(source, k) }
