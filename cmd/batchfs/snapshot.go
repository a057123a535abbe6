package main

import (
	"cmp"
	"encoding/gob"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"batchfs/cache"
)

// A snapshot is a mount as it was set up: what one process needs to serve what another served, although since then somebody
// has edited the configuration, or moved the token files.
type snapshot struct {
	Mountpoint string
	Dir        string // that the command was given in
	Config     string // the flags, to read the configuration anew with
	Data       string
	Sets       []string
	Written    written
	NoResend   bool
	Splits     []splitSnapshot
}

// A splitSnapshot is a split's data.
type splitSnapshot struct {
	Name       string
	Tokens     cache.Manifest
	TorchState []byte
	Changes    uint64
}

// snapshot is that of splits that were opened.
func (f *configFlags) snapshot(mountpoint string, w written, splits []opened) (*snapshot, error) {
	dir, err := unix.Getwd() // which need not be allowed to enter it, as os.Getwd has to be
	if err != nil {
		return nil, err
	}
	s := &snapshot{Mountpoint: mountpoint, Dir: dir, Config: f.config, Data: f.data, Sets: f.sets, Written: w}
	for _, o := range splits {
		s.Splits = append(s.Splits, o.snapshot())
	}
	return s, nil
}

func (o opened) snapshot() splitSnapshot {
	return splitSnapshot{o.split.Split, o.tokens.Manifest(), o.split.TorchState, o.changes}
}

// file is a file that has the snapshot, and no name.
func (s *snapshot) file() (*os.File, error) {
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

// readSnapshot reads what file wrote. Others have the file open too.
func readSnapshot(file *os.File) (*snapshot, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	s := new(snapshot)
	return s, gob.NewDecoder(io.NewSectionReader(file, 0, info.Size())).Decode(s)
}

// config is the configuration, its paths absolute.
func (s *snapshot) config() (*config, error) {
	c, err := s.Written.decodeSplits()
	if err != nil {
		return nil, err
	}
	for _, split := range c.Splits {
		if !filepath.IsAbs(split.dir) {
			split.dir = filepath.Join(s.Dir, split.dir)
		}
	}
	return c, nil
}

// splits are those of a configuration with the data of the snapshot.
func (s *snapshot) splits(c *config) (all []opened, err error) {
	for _, split := range c.Splits {
		i := slices.IndexFunc(s.Splits, func(of splitSnapshot) bool { return of.Name == split.Split })
		if i < 0 {
			return nil, fmt.Errorf("the mount has no split %s", split.Split)
		}
		of := s.Splits[i]
		split.TorchState = of.TorchState
		var o opened
		tokens, err := cache.Reopen(of.Tokens, split.options(c.Memory))
		if err == nil {
			o, err = split.over(tokens)
		}
		if err != nil {
			return nil, fmt.Errorf("splits.%s: %w", split.Split, err)
		}
		o.changes = of.Changes
		all = append(all, o)
	}
	return all, nil
}

// anew reads the configuration again. The error says what of it cannot change while it is mounted.
func (s *snapshot) anew() (*snapshot, error) {
	was, err := s.config()
	if err != nil {
		return nil, err
	}
	// Somebody who may not enter it can have given the command there.
	if err := os.Chdir(s.Dir); err != nil && !filepath.IsAbs(cmp.Or(s.Config, s.Data)) {
		return nil, err
	}
	f := configFlags{config: s.Config, data: s.Data, sets: s.Sets}
	fresh := *s
	if fresh.Written, err = f.read(); err != nil {
		return nil, err
	}
	now, err := fresh.config()
	if err != nil {
		return nil, err
	}
	return &fresh, now.suits(was)
}

// suits returns an error unless readers of a mount of the configuration was see the same in one of c.
func (c *config) suits(was *config) error {
	const fix = "unmount, and mount anew, to change it"
	for _, key := range slices.Sorted(maps.Keys(mountKeys)) {
		now, then := mountKeys[key].get(&c.Mount), mountKeys[key].get(&was.Mount)
		if key != "timeout" && now != then {
			return fmt.Errorf("mount.%s is %v, and the configuration has %v; %s", key, then, now, fix)
		}
	}
	for _, old := range was.Splits {
		i := slices.IndexFunc(c.Splits, func(s *split) bool { return s.Split == old.Split })
		if i < 0 {
			return fmt.Errorf("splits.%s is mounted, and the configuration has it no more; %s", old.Split, fix)
		}
		now, then := c.Splits[i].lasting(), old.lasting()
		for _, key := range slices.Sorted(maps.Keys(then)) {
			if !reflect.DeepEqual(now[key], then[key]) {
				return fmt.Errorf("splits.%s.%s is %v in the mount, and the configuration has %v; %s", old.Split, key, then[key], now[key], fix)
			}
		}
	}
	if len(c.Splits) > len(was.Splits) {
		return fmt.Errorf("the configuration has splits that the mount has not; %s", fix)
	}
	return nil
}

// lasting are the settings of a split that cannot change while it is mounted.
func (s *split) lasting() map[string]any {
	all := s.values()
	all["tokens"], all["sources"], all["join"], all["token_dtype"], all["torch_state"] = s.Tokens, s.Sources, s.Join, s.TokenDType, s.StateFile
	return all
}

// A publisher keeps the keeper's snapshot up to date.
type publisher struct {
	publish func(*os.File) error
	mu      sync.Mutex
	now     *snapshot // guarded by mu
}

// changed is told of a split whose data is other data now, before anybody reads that.
func (p *publisher) changed(o opened) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.now.Splits {
		if p.now.Splits[i].Name == o.split.Split {
			p.now.Splits[i] = o.snapshot()
		}
	}
	file, err := p.now.file()
	if err != nil {
		return err
	}
	return p.publish(file)
}
