package dataset

import (
	"encoding/gob"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"batchfs/cache"
	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/config"
	"batchfs/fs"
	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/printable"
	"batchfs/sampler"
)

// A Snapshot is everything that a process needs to serve the same batches as another one, even if
// the configuration or the token files have changed since. It belongs to one goroutine at a time.
// gob encodes it, so its field names must not change.
type Snapshot struct {
	Mountpoint string
	Dir        string       // working directory of the mount command
	Flags      config.Flags // flags for reading the configuration again
	Raw        config.RawConfig
	NoResend   bool   // see supervise.Options
	Log        string // path of the mount's log file, or empty
	Splits     []splitSnapshot
	// Generation counts the restarts that have changed schedules.
	Generation uint64
}

type splitSnapshot struct {
	Name        string
	Sources     [][]cache.Manifest // manifests of the arrays of each source
	Hint        vocabHint
	Fingerprint string
	TorchState  []byte
	Version     uint64
	Unleased    string              // see Dataset.unleasedFile
	RowCounts   []sampler.RowCounts // see Dataset.counts; saves workers from counting rows
	Schedule    *sampler.Schedule   // without the settings of a path; if nil, open computes it
	Mounted     *sampler.Settings   // settings of Dataset.mounted, or nil

	SourceFingerprints []string // see Dataset.sourceFingerprints
}

// NewSnapshot returns the snapshot of a mount of all splits of a configuration. Paths in flags are
// relative to the working directory.
func NewSnapshot(mountpoint string, flags config.Flags, raw config.RawConfig, datasets []*Dataset) (*Snapshot, error) {
	dir, err := unix.Getwd() // unlike os.Getwd, it works in a directory that may not be entered
	if err == unix.ENOENT {
		err = nil // the working directory was removed; opening relative paths has failed already
	}
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Mountpoint: mountpoint, Dir: dir, Flags: flags, Raw: raw}
	for _, d := range datasets {
		s.Splits = append(s.Splits, d.snapshot())
	}
	return s, nil
}

func (d *Dataset) snapshot() splitSnapshot {
	s := splitSnapshot{
		Name:        d.Split.Name,
		Hint:        d.hint,
		Fingerprint: d.fingerprint,
		TorchState:  d.Split.TorchState,
		Version:     d.Version,
		Unleased:    d.unleasedFile,
		RowCounts:   d.counts,
		Schedule:    d.Sequence.Schedule(),

		SourceFingerprints: d.sourceFingerprints,
	}
	if d.mounted != nil {
		s.Mounted = &d.mounted.Settings
	}
	for _, arrays := range d.sources {
		s.Sources = append(s.Sources, manifestsOf(arrays))
	}
	return s
}

func manifestsOf(arrays []*cache.Array) (list []cache.Manifest) {
	for _, array := range arrays {
		list = append(list, array.Manifest())
	}
	return list
}

// File writes s to an unnamed file in memory, which [ReadSnapshot] reads. The caller closes it.
func (s *Snapshot) File() (*os.File, error) {
	fd, err := unix.MemfdCreate("batchfs-snapshot", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "snapshot")
	if err := gob.NewEncoder(file).Encode(s); err != nil {
		file.Close()
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return file, nil
}

// ReadSnapshot reads a file that [Snapshot.File] returned. It does not move the file's offset,
// which other processes share.
func ReadSnapshot(file *os.File) (*Snapshot, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	s := new(Snapshot)
	return s, gob.NewDecoder(io.NewSectionReader(file, 0, info.Size())).Decode(s)
}

// Config returns the configuration, with absolute paths of token files.
func (s *Snapshot) Config() (*config.Config, error) {
	c, err := s.Raw.Decode()
	if err != nil {
		return nil, err
	}
	c.MakeAbsolute(s.Dir)
	return c, nil
}

// UnleasedWarning returns a function that logs a warning for each split that follows changes but
// has a file on which no lease can be had. It may be called at any time.
func (s *Snapshot) UnleasedWarning(c *config.Config, log *slog.Logger) func() {
	files := map[string]string{} // by the name of the split
	for _, split := range c.Splits {
		if file := s.find(split.Name).Unleased; file != "" && split.OnChange == "follow" {
			files[split.Name] = file
		}
	}
	return func() {
		for _, split := range slices.Sorted(maps.Keys(files)) {
			log.Warn("no lease can be had on token files, so their writers are unknown: a file that is overwritten in place is served once it "+
				"has not changed for a while; rename new files over old ones instead, or run batchfs as the owner of the files or with CAP_LEASE",
				"split", split, "file", files[split])
		}
	}
}

// MountedSequences returns the sequences of the splits as a mount serves them, whose state is
// shared. The configuration of o must be that of the snapshot. Token files are opened when they are
// first read.
//
// When token files have changed, publish gets a file with the new s, from which later workers
// start, before the split serves the new tokens. publish must close the file. If it fails, s stays
// as it was.
func (s *Snapshot) MountedSequences(
	o *Opener, log *slog.Logger, shared *state.Shared, publish func(*os.File) error,
) ([]fs.Sequence, error) {
	var mu sync.Mutex
	changed := func(d *Dataset) error {
		mu.Lock()
		defer mu.Unlock()
		split := s.find(d.Split.Name)
		old := *split
		*split = d.snapshot()
		file, err := s.File()
		if err == nil {
			err = publish(file)
		}
		if err != nil {
			// A later call for another split must not publish tokens that no worker serves.
			*split = old
		}
		return err
	}
	var all []fs.Sequence
	for _, split := range o.Config.Splits {
		d, err := s.open(split, o)
		if err != nil {
			return nil, err
		}
		all = append(all, newMountedSequence(d, newWatcher(d, o, log, changed), s.Mountpoint, shared))
	}
	return all, nil
}

// OpenPath opens one split by its path in the mount, with the batches that the mount serves.
func (s *Snapshot) OpenPath(path string) (*Dataset, error) {
	c, err := s.Config()
	if err != nil {
		return nil, err
	}
	o := NewOpener(c)
	return openPath(c, path, func(split *config.Split) (*Dataset, error) { return s.open(split, o) })
}

func (s *Snapshot) open(split *config.Split, o *Opener) (*Dataset, error) {
	if data := s.find(split.Name); data != nil {
		return data.open(split, o)
	}
	return nil, fmt.Errorf("the mount has no split %s", split.Name)
}

// open returns a split as the mount serves it, under the settings of split. Unless its rows must be
// counted, it touches no token file, so a worker starts even if a disk hangs.
func (data *splitSnapshot) open(split *config.Split, o *Opener) (*Dataset, error) {
	split = data.Hint.apply(split)
	withState := *split
	withState.TorchState = data.TorchState
	f := openedFiles{
		sources: make([][]*cache.Array, len(data.Sources)), hint: data.Hint,
		fingerprint: data.Fingerprint, sourceFingerprints: data.SourceFingerprints,
	}
	for i, manifests := range data.Sources {
		for n, manifest := range manifests {
			array, err := cache.Reopen(manifest, cacheOptions(split, o, i, n, data.Hint))
			if err != nil {
				return nil, fmt.Errorf("splits.%s: %w", split.Name, err)
			}
			f.sources[i] = append(f.sources[i], array)
		}
	}
	d, err := o.newDataset(&withState, f, data.RowCounts, data.Schedule, data.Mounted)
	if err != nil {
		return nil, err
	}
	d.Version, d.unleasedFile = data.Version, data.Unleased
	return d, nil
}

// find returns the snapshot of a split, or nil.
func (s *Snapshot) find(split string) *splitSnapshot {
	for i := range s.Splits {
		if s.Splits[i].Name == split {
			return &s.Splits[i]
		}
	}
	return nil
}

// SnapshotOf returns the snapshot that a mount's supervisor holds.
func SnapshotOf(m *mount.Mounted) (*Snapshot, error) {
	file, err := m.Snapshot()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	snapshot, err := ReadSnapshot(file)
	if err != nil {
		return nil, fmt.Errorf("%s: another version of batchfs serves the mount: %w; replace it with: batchfs restart %s", m.Mountpoint,
			err, printable.ShellArg(m.Mountpoint))
	}
	return snapshot, nil
}

// Readable returns a split as readers of the mount see it now: with the files of the snapshot, or
// with the current ones if the split follows changes. It checks all files and reads the
// batch with which next begins.
func (s *Snapshot) Readable(split *config.Split, o *Opener) (*Dataset, error) {
	d, err := s.open(split, o)
	if err != nil {
		return nil, err
	}
	w := newWatcher(d, o, slog.New(slog.DiscardHandler), func(*Dataset) error { return nil })
	w.pass()
	v := w.view.Load()
	if v.err != nil {
		return nil, v.err
	}
	d = v.dataset
	for b := range d.blobs() {
		if blob.IsRemote(b.Path()) {
			continue
		}
		file, err := os.Open(b.Path())
		if err != nil {
			return nil, err
		}
		file.Close()
	}
	return d, d.TryRead()
}
