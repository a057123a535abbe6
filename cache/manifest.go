package cache

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Manifest describes tokens as they were when they were opened: what another process needs to go on with them. JSON keeps
// all of it.
type Manifest struct {
	Sources     [][]File // the files of each source, in order
	Fingerprint string
}

// A File is a token file as it was when it was opened.
type File struct {
	Path []byte // not a string: JSON has none that is not UTF-8
	ID   identity
}

// An identity tells a file from the one that stood at its path before, and from itself before somebody wrote to it.
type identity struct {
	Dev, Ino  uint64
	Size      int64 // bytes
	Sec, Nsec int64 // mtime
}

// Manifest is what Reopen makes the same tokens of.
func (t *Tokens) Manifest() Manifest {
	m := Manifest{Fingerprint: t.fingerprint}
	for _, s := range t.shards {
		if s.source == len(m.Sources) {
			m.Sources = append(m.Sources, nil)
		}
		m.Sources[s.source] = append(m.Sources[s.source], File{[]byte(s.path), s.id})
	}
	return m
}

// Reopen makes the tokens that Open made when m was theirs. It does not look at the files: one that is no longer that of m,
// or is gone, is an error when it is read or checked.
func Reopen(m Manifest, o Options) (*Tokens, error) {
	t := &Tokens{Options: o, fingerprint: m.Fingerprint}
	t.Was = nil
	t.pool.New = func() any { return new([]byte) }
	var start int64
	for source, files := range m.Sources {
		if len(files) == 0 {
			return nil, errors.New("a source without token files")
		}
		for i, f := range files {
			path, width := string(f.Path), int64(o.Width)
			cpath, err := unix.BytePtrFromString(path)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%q: %w", path, err)
			case f.ID.Size <= 0:
				return nil, fmt.Errorf("%s is empty", path)
			case f.ID.Size%width != 0:
				return nil, fmt.Errorf("%s: %d bytes are not a whole number of tokens of %d bytes; is token_dtype right, "+
					"and is the file complete?", path, f.ID.Size, width)
			}
			s := &shard{path: path, cpath: cpath, source: source, start: start, len: f.ID.Size / width, id: f.ID}
			start += s.len
			t.shards = append(t.shards, s)
			if i > 0 && o.Join {
				t.runs[len(t.runs)-1].Len += s.len
				continue
			}
			t.runs = append(t.runs, Run{path, source, s.start, s.len})
		}
	}
	if len(t.shards) == 0 {
		return nil, errors.New("no token files")
	}
	return t, nil
}
