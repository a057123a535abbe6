package fs

import (
	"time"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

// Version counts how often the tokens of a split have changed since the mount began.
type Version = state.Version

// A Sequence is the sequence of a split, or of a split under the settings of a path. It stays the
// same object when token files change, and then has another BatchList. It is safe for concurrent
// use.
//
// A reader gets EIO for an error that wraps none of syscall.ESTALE, ETIMEDOUT and ENODATA, and the
// last of these if it wraps several.
type Sequence interface {
	// Current returns the BatchList that another method returned last, without any checks.
	Current() BatchList

	// Latest returns the BatchList of the token files that were opened last. It checks files only
	// if one is known to be wrong, nobody has read for a minute, or this process has not checked
	// them yet. It waits for a check of all files until cancel is closed, but at most a second. If
	// no batch can be read, it returns Current and an error.
	Latest(cancel <-chan struct{}) (BatchList, error)

	// LatestFor is like Latest, but also checks the files of batch k. If they have changed and
	// Spec.FollowsChanges is set, it waits for the new ones, or until cancel is closed.
	LatestFor(k uint64, cancel <-chan struct{}) (BatchList, error)

	// LatestWhole is like Latest, but fails unless every batch could be read at the last check of
	// all files.
	LatestWhole(cancel <-chan struct{}) (BatchList, error)

	// With returns the sequence of the split under the settings of a path, such as
	// "rank=3,world=8". Equivalent settings yield the same Spec.Name. The error wraps
	// syscall.ENOENT if a setting is unknown.
	With(settings string) (Sequence, error)

	// OnChange sets a function that is called with each new BatchList, one call at a time, before
	// any other method returns it. OnChange must be called before the Sequence is used
	// concurrently.
	OnChange(f func(BatchList))

	// Stalled returns how long a check of all token files has been blocked, or 0.
	Stalled() time.Duration
}

// A BatchList is the list of batches of a [Sequence] with certain token files; Spec.Batches says
// whether it ends. It is immutable and safe for concurrent use.
type BatchList interface {
	Spec() *Spec

	// Read fills dst with the bytes of batches k, k+1, … back to back, starting at byte off of
	// batch k. It fails if the files that hold these bytes have changed, even during the read.
	// Beyond Spec.Batches, the error wraps syscall.ENODATA.
	Read(dst []byte, k uint64, off int64) error

	// Check returns an error if a file of batch k has changed.
	Check(k uint64) error

	// ReadTokens fills dst with the bytes of tokens.bin, starting at byte off. The range must lie
	// within Spec.TokensFileSize.
	ReadTokens(dst []byte, off int64) error

	// ReadBatchJSON fills dst with the bytes of batch/<k>.json, starting at byte off. The range
	// must lie within BatchJSONLen, which is the same for every k. Errors are those of Read.
	ReadBatchJSON(dst []byte, k uint64, off int64) error
	BatchJSONLen() int64

	// Info renders info.json. InfoLen returns its length; only the first call renders it.
	Info() []byte
	InfoLen() int64

	// RowsOf returns how many rows of batch k come from a source, given by its index in
	// Spec.SourceNames.
	RowsOf(source int, k uint64) uint64
}

// A Phase is a part of a mixture with fixed weights.
type Phase struct {
	Batch   uint64    // the first one with rows of the phase or a later one
	Weights []float64 // fraction of rows from each source
}

// A Spec describes a BatchList.
type Spec struct {
	// Name is the path of the directory, such as "train/rank=3,world=8". It has only the settings
	// that differ from the split's own.
	Name string

	Note           string            // remark about the rows, for README; may be empty
	Batch          array.Batch       // at most array.MaxArrays arrays
	Batches        uint64            // 1 + the number of the last batch
	Steps          uint64            // batches in batches.*
	MaxSteps       uint64            // batches in sequence.bin, from 1 to MaxBatches
	Start          uint64            // first number that next takes
	EpochBatches   uint64            // 0 if the order has no epochs
	SourceNames    []string          // names of the sources of a mixture
	Phases         []Phase           // phases of a mixture; nil for a single source
	TokensFileSize int64             // size of tokens.bin, in bytes
	FilesSize      int64             // size of all elements of the files, in bytes
	TokensModified time.Time         // modification time of the files of tokens
	Modified       time.Time         // modification time of batches, which depends on the settings
	Metadata       map[string]string // metadata of .safetensors files
	Version        Version
	FollowsChanges bool // whether changed token files are opened again; otherwise, reads fail
}
