package dataset

import (
	"cmp"
	"encoding/gob"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"batchfs/cache"
	"batchfs/cmd/batchfs/config"
)

// A Snapshot is a mount as it was set up. From it, a process serves what another one served, although the configuration or the token
// files may have changed since.
type Snapshot struct {
	Mountpoint string
	Dir        string           // that the command was given in
	Flags      config.Flags     // to read the configuration again with
	Raw        config.RawConfig // the configuration
	NoResend   bool             // see supervise.Options
	Log        string           // the file that the mount's log goes to, or empty
	Splits     []splitSnapshot
}

// A splitSnapshot is the data of a split.
type splitSnapshot struct {
	Name        string
	Sources     [][]cache.Manifest // of the arrays of each
	Hint        vocabHint
	Fingerprint string
	TorchState  []byte
	Version     uint64
	Unleased    string    // a file whose writers cannot be known, or empty
	Groups      [][]int64 // rows of the groups of documents of each source, so that no worker counts them again
}

// NewSnapshot needs what flags read in the working directory, and all splits.
func NewSnapshot(mountpoint string, flags config.Flags, raw config.RawConfig, datasets []*Dataset) (*Snapshot, error) {
	dir, err := unix.Getwd() // unlike os.Getwd, it works in a directory that may not be entered
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
		Unleased:    d.unleased,
		Groups:      d.groups,
	}
	for _, source := range d.sources {
		var manifests []cache.Manifest
		for _, array := range source {
			manifests = append(manifests, array.Manifest())
		}
		s.Sources = append(s.Sources, manifests)
	}
	return s
}

// File returns a file in memory, without a name, that ReadSnapshot reads. The caller closes it.
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

// ReadSnapshot leaves the file's offset alone, which other processes share.
func ReadSnapshot(file *os.File) (*Snapshot, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	s := new(Snapshot)
	return s, gob.NewDecoder(io.NewSectionReader(file, 0, info.Size())).Decode(s)
}

// Config returns the configuration, its paths to token files absolute.
func (s *Snapshot) Config() (*config.Config, error) {
	c, err := s.Raw.Decode()
	if err != nil {
		return nil, err
	}
	c.MakeAbsolute(s.Dir)
	return c, nil
}

// Reload returns the snapshot with the configuration as it is written now. It enters the directory of the command. The error says what
// cannot change in a mount.
func (s *Snapshot) Reload() (*Snapshot, error) {
	old, err := s.Config()
	if err != nil {
		return nil, err
	}
	// The command may have been given in a directory that may not be entered, with absolute paths.
	f := s.Flags
	if err := os.Chdir(s.Dir); err != nil && !(filepath.IsAbs(cmp.Or(f.Config, f.Data)) && filepath.IsAbs(cmp.Or(f.Data, f.Config))) {
		return nil, err
	}
	fresh := *s
	if fresh.Raw, err = fresh.Flags.Read(); err != nil {
		return nil, err
	}
	now, err := fresh.Config()
	if err != nil {
		return nil, err
	}
	return &fresh, now.CanReplace(old)
}

// Warn logs the splits that follow their files although the kernel cannot say which processes write to them.
func (s *Snapshot) Warn(c *config.Config, log *slog.Logger) {
	for i, split := range c.Splits {
		if file := s.Splits[i].Unleased; file != "" && split.OnChange == "follow" {
			log.Warn("no lease can be had on token files, so who writes to them is not known: one that is overwritten in place is served when it "+
				"has not changed for a while; better rename a new file over it, or run batchfs as the owner of the files or with CAP_LEASE",
				"split", split.Name, "file", file)
		}
	}
}

// Sequences returns the splits of o, which has the configuration of the snapshot, as a mount shows them. Token files are opened when a batch is read.
// Before other tokens are read, publish gets a snapshot for later workers, which it closes; s changes too.
func (s *Snapshot) Sequences(o *Opener, log *slog.Logger, publish func(*os.File) error) ([]*Served, error) {
	var mu sync.Mutex
	changed := func(d *Dataset) error {
		mu.Lock()
		defer mu.Unlock()
		i := slices.IndexFunc(s.Splits, func(data splitSnapshot) bool { return data.Name == d.Split.Name })
		s.Splits[i] = d.snapshot()
		file, err := s.File()
		if err != nil {
			return err
		}
		return publish(file)
	}
	var all []*Served
	for _, split := range o.Config.Splits {
		d, err := s.open(split, o)
		if err != nil {
			return nil, err
		}
		w := newWatcher(d)
		w.mountpoint, w.opener, w.log, w.publish = s.Mountpoint, o, log, changed
		all = append(all, newServed(d, w))
	}
	return all, nil
}

// OpenPath opens one split by its path in the mount, with the data of the snapshot: its batches are those that the mount serves.
func (s *Snapshot) OpenPath(path string) (*Dataset, error) {
	c, err := s.Config()
	if err != nil {
		return nil, err
	}
	o := NewOpener(c)
	return openPath(c, path, func(split *config.Split) (*Dataset, error) { return s.open(split, o) })
}

func (s *Snapshot) open(split *config.Split, o *Opener) (*Dataset, error) {
	i := slices.IndexFunc(s.Splits, func(data splitSnapshot) bool { return data.Name == split.Name })
	if i < 0 {
		return nil, fmt.Errorf("the mount has no split %s", split.Name)
	}
	data := s.Splits[i]
	split = data.Hint.apply(split)
	withState := *split
	withState.TorchState = data.TorchState
	sources := make([][]*cache.Array, len(data.Sources))
	for i, manifests := range data.Sources {
		for n, manifest := range manifests {
			array, err := cache.Reopen(manifest, options(split, o, i, n, data.Hint))
			if err != nil {
				return nil, fmt.Errorf("splits.%s: %w", split.Name, err)
			}
			sources[i] = append(sources[i], array)
		}
	}
	d, err := o.newDataset(&withState, sources, data.Hint, data.Fingerprint, data.Groups)
	if err != nil {
		return nil, err
	}
	d.Version = data.Version
	return d, nil
}
