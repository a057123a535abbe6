package units

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// An Output is the place that all tasks write to. Names are relative to it, and those of sidecars
// begin with Dir. Files appear in it whole or not at all. It is safe for use by many processes.
type Output interface {
	// Make creates the output if it does not exist.
	Make(ctx context.Context) error
	// List returns the files and sidecars, without those of directories other than Dir. If states
	// is false, their states may be zero.
	List(ctx context.Context, states bool) (map[string]State, error)
	// Stat returns the state of a file. The error matches fs.ErrNotExist if there is none.
	Stat(ctx context.Context, name string) (State, error)
	// Open opens a file. The error matches fs.ErrNotExist if there is none.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// Scratch makes a directory that nobody else uses. Its name contains the given one.
	Scratch(name string) (dir string, err error)
	// Publish moves a file, which has been synced, to the output.
	Publish(ctx context.Context, from, name string) (State, error)
	// Write writes a small file, which remains after a power failure.
	Write(ctx context.Context, name string, text []byte) error
	// Sync returns when what has been published remains after a power failure.
	Sync(ctx context.Context) error
	// Clean removes what tasks that were killed have left, among it uploads of our files.
	Clean(ctx context.Context, ours func(name string) bool) error
	// Path returns the path or URL of a file, for messages.
	Path(name string) string
}

// A Folder is an Output on a local or shared file system.
type Folder string

const scratchPrefix = "tmp-"

// Make implements [Output].
func (f Folder) Make(context.Context) error { return os.MkdirAll(f.Path(Dir), 0o777) }

// List implements [Output].
func (f Folder) List(_ context.Context, states bool) (map[string]State, error) {
	files := map[string]State{}
	for _, dir := range []string{"", Dir} {
		entries, err := os.ReadDir(filepath.Join(string(f), dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			switch {
			case !e.Type().IsRegular():
				continue
			case !states:
				files[name] = State{}
				continue
			}
			info, err := e.Info()
			switch {
			case errors.Is(err, fs.ErrNotExist): // a temporary file of a task
			case err != nil:
				return nil, err
			default:
				files[name] = StateOf(info)
			}
		}
	}
	return files, nil
}

// Stat implements [Output].
func (f Folder) Stat(_ context.Context, name string) (State, error) {
	info, err := os.Stat(f.Path(name))
	if err != nil {
		return State{}, err
	}
	return StateOf(info), nil
}

// StateOf returns the state of a file.
func StateOf(info fs.FileInfo) State { return State{Size: info.Size(), Modified: info.ModTime().UTC()} }

// Open implements [Output].
func (f Folder) Open(_ context.Context, name string) (io.ReadCloser, error) {
	return os.Open(f.Path(name))
}

// Scratch implements [Output].
func (f Folder) Scratch(name string) (dir string, err error) {
	return os.MkdirTemp(f.Path(Dir), scratchPrefix+name+"-")
}

// Publish implements [Output].
func (f Folder) Publish(ctx context.Context, from, name string) (State, error) {
	if err := os.Rename(from, f.Path(name)); err != nil {
		return State{}, err
	}
	return f.Stat(ctx, name)
}

// Write implements [Output].
func (f Folder) Write(ctx context.Context, name string, text []byte) error {
	to := f.Path(name)
	temporary, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // unless it has been renamed
	_, err = temporary.Write(text)
	// All of these are called, whatever fails.
	if err := cmp.Or(err, temporary.Chmod(0o644), temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

// Sync implements [Output].
func (f Folder) Sync(context.Context) error { return cmp.Or(syncDir(f.Path("")), syncDir(f.Path(Dir))) }

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Clean implements [Output].
func (f Folder) Clean(context.Context, func(name string) bool) error {
	isLeft := map[string]func(name string) bool{
		f.Path(Dir): func(name string) bool { return strings.HasPrefix(name, scratchPrefix) || strings.HasPrefix(name, ".") },
		f.Path(""):  func(name string) bool { return strings.HasPrefix(name, ".vocab.json.") },
	}
	for dir, isLeft := range isLeft {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !isLeft(e.Name()) {
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Path implements [Output].
func (f Folder) Path(name string) string { return filepath.Join(string(f), name) }

// A Listing is an Output whose files have been listed, with their states.
type Listing struct {
	Output
	Files map[string]State
}

// Stat returns the state of a file when it was listed.
func (l *Listing) Stat(_ context.Context, name string) (State, error) {
	state, ok := l.Files[name]
	if !ok {
		return state, fs.ErrNotExist
	}
	return state, nil
}

// Check returns an error unless the files of a sidecar are as the task wrote them. A file with the
// right size but another time or ETag may be a copy, or come from a task that ran twice, so its
// bytes decide. If verify is set, the bytes of all files do.
func (s *Sidecar) Check(ctx context.Context, out Output, verify bool) error {
	for _, file := range s.Files {
		found, err := out.Stat(ctx, file.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("unit %s: %s is missing", Name(s.Unit), out.Path(file.Name))
		case err != nil:
			return fmt.Errorf("unit %s: %w", Name(s.Unit), err)
		case found.Size != file.Size:
			return fmt.Errorf("unit %s: %s has %d bytes, but had %d", Name(s.Unit), out.Path(file.Name), found.Size, file.Size)
		case found.Equal(file.State) && !verify:
			continue
		}
		sum, err := Hash(ctx, out, file.Name)
		switch {
		case err != nil:
			return fmt.Errorf("unit %s: %w", Name(s.Unit), err)
		case sum != file.SHA256:
			return fmt.Errorf("unit %s: %s has other bytes than the task wrote", Name(s.Unit), out.Path(file.Name))
		}
	}
	return nil
}

// Hash returns the SHA-256 of a file in hexadecimal digits.
func Hash(ctx context.Context, out Output, name string) (string, error) {
	f, err := out.Open(ctx, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, &untilDone{ctx, f}); err != nil {
		return "", fmt.Errorf("%s: %w", out.Path(name), err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// An untilDone reads until its context ends.
type untilDone struct {
	ctx context.Context
	io.Reader
}

func (u *untilDone) Read(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.Reader.Read(b)
}

// ReadSidecar reads the sidecar of a unit.
func ReadSidecar(ctx context.Context, out Output, unit int, name string) (*Sidecar, error) {
	f, err := out.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", out.Path(name), err)
	}
	return Parse(unit, name, text)
}

// ReadSidecars reads the sidecars with these names, several at a time. Those of units that are not
// done, whose names are empty, are nil.
func ReadSidecars(ctx context.Context, out Output, names []string) ([]*Sidecar, error) {
	sidecars, errs := make([]*Sidecar, len(names)), make([]error, len(names))
	Parallel(32, len(names), func(i int) {
		if names[i] != "" {
			sidecars[i], errs[i] = ReadSidecar(ctx, out, i, names[i])
		}
	})
	return sidecars, cmp.Or(errs...)
}

// Parallel calls do with each number below n, up to limit at a time.
func Parallel(limit, n int, do func(i int)) {
	var next atomic.Int64
	var callers sync.WaitGroup
	for range min(limit, n) {
		callers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	callers.Wait()
}
