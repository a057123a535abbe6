package prepare

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"batchfs/internal/privatedir"
)

// A workDir is the working directory of an unfinished run, DIR/.prepare. It holds the files to move
// to DIR at the end, and temporary files, whose names begin with ".".
type workDir struct {
	out           *os.Root // the directory DIR
	dir           *os.Root // the directory DIR/.prepare
	lock          *os.File // descriptor of DIR/.prepare that holds the lock
	hasCheckpoint bool     // whether another run can continue this one
}

const workDirName = ".prepare"

// createdFilePattern matches the files that prepare may remove from the working directory. These
// are its own, and those of a batchfs.writer that was killed before its first checkpoint.
var createdFilePattern = regexp.MustCompile(
	`^vocab\.json$|^\.state\.json(\.new)?$|^\.(writer|finish)\.json\.new$|^\.parquet-\d+$|` +
		`^\.(train|val)(_\d+)?\.bin\.ends$|^(train|val)(_\d+)?\.\w+\.bin$|` + tokenFilePattern.String())

// writerFilePattern matches the files that only batchfs.writer makes: its checkpoint, and the
// working directories of its shards.
var writerFilePattern = regexp.MustCompile(`^\.(writer|finish)\.json$|^shard_\d+_of_\d+$`)

// openWorkDir opens DIR and its working directory, and locks the working directory. It creates them
// if they do not exist.
func openWorkDir(out string) (*workDir, error) {
	w := new(workDir)
	err := os.MkdirAll(out, 0o777)
	if err == nil {
		w.out, err = os.OpenRoot(out)
	}
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	if err := w.open(); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(out, workDirName), err)
	}
	return w, nil
}

// open opens and locks the working directory. It must belong to the user, because another owner
// could redirect what is written and removed there.
func (w *workDir) open() error {
	for {
		if err := w.out.Mkdir(workDirName, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		err := w.openExisting()
		if err == nil {
			break
		}
		// Another run that ends may remove the directory at any moment.
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	names, err := w.fileNames()
	if slices.ContainsFunc(names, writerFilePattern.MatchString) {
		return errors.New("belongs to an unfinished batchfs.writer: continue it in Python with resume=True, or remove the directory")
	}
	return err
}

// openExisting opens and locks the working directory. It returns fs.ErrNotExist if there is none,
// or if another run removes it before it is locked.
func (w *workDir) openExisting() error {
	info, err := w.out.Lstat(workDirName)
	if err == nil && !info.IsDir() {
		err = errors.New("is not a directory, but prepare needs this name for its working directory: move it away, or choose another --out")
	}
	if err != nil {
		return err
	}
	if w.dir, err = w.out.OpenRoot(workDirName); err != nil {
		return err
	}
	if w.lock, err = privatedir.Open(w.dir, false); err != nil {
		w.dir.Close()
		return fmt.Errorf("%w: choose another --out, or remove it", err)
	}
	if err = w.lockOpened(); err != nil {
		w.lock.Close()
		w.dir.Close()
	}
	return err
}

func (w *workDir) lockOpened() error {
	err := privatedir.Lock(w.lock, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.New("another batchfs prepare or batchfs.writer is running there: wait until it has ended")
	}
	if err != nil {
		return err
	}
	opened, err := w.lock.Stat()
	if err != nil {
		return err
	}
	if now, err := w.out.Lstat(workDirName); err != nil || !os.SameFile(opened, now) {
		return fs.ErrNotExist
	}
	return nil
}

// close removes the working directory unless it has a checkpoint.
func (w *workDir) close() {
	if !w.hasCheckpoint {
		w.clear()
		w.out.Remove(workDirName)
	}
	w.lock.Close()
	w.dir.Close()
	w.out.Close()
}

// clear removes the files that createdFilePattern matches. It removes the checkpoint first, because
// a checkpoint is valid only with all files that it lists.
func (w *workDir) clear() error {
	names, err := w.createdFiles()
	if i := slices.Index(names, checkpointName); i >= 0 {
		names[0], names[i] = names[i], names[0]
	}
	for _, name := range names {
		if err == nil {
			err = w.dir.Remove(name)
		}
	}
	return err
}

// removePublished removes the working directory if it has nothing to move to DIR any more, because
// its run was killed just before the end.
func removePublished(out string) {
	if _, err := os.Lstat(filepath.Join(out, workDirName)); err != nil {
		return
	}
	w, err := openWorkDir(out)
	if err != nil {
		return // the directory belongs to another program
	}
	s, err := w.load()
	names, namesErr := w.finalNames()
	w.hasCheckpoint = err != nil || namesErr != nil || s != nil && (!s.Complete || len(names) > 0)
	w.close()
}

func (w *workDir) createdFiles() ([]string, error) {
	names, err := w.fileNames()
	return slices.DeleteFunc(names, func(name string) bool { return !createdFilePattern.MatchString(name) }), err
}

func (w *workDir) fileNames() ([]string, error) {
	dir, err := w.dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// finalNames returns the names of the files to move to DIR, in the order in which they are moved.
// vocab.json comes first: until all files that it lists are there, no mount accepts any of them.
// Token files come last, because a mount accepts them without their indexes.
func (w *workDir) finalNames() ([]string, error) {
	names, err := w.createdFiles()
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, ".") })
	slices.SortFunc(names, compareMoves)
	return names, err
}

// compareMoves compares names in the order in which finalNames returns them.
func compareMoves(a, b string) int {
	stage := func(name string) int {
		switch {
		case name == manifestName:
			return 0
		case isTokenFile(name):
			return 2
		}
		return 1
	}
	return cmp.Or(stage(a)-stage(b), strings.Compare(a, b))
}

// publish moves the files of a complete run to DIR. It first removes the files of an earlier run,
// token files before the others, so that no mount combines files of two runs: until the last file
// is moved, a token file that vocab.json lists is missing.
func (w *workDir) publish(s *checkpoint) error {
	names, err := w.finalNames()
	if err != nil {
		return err
	}
	replaced := slices.Concat(s.Stale, names)
	slices.SortFunc(replaced, compareMoves)
	for _, name := range slices.Backward(replaced) {
		if name == manifestName {
			continue
		}
		if err := w.out.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range names {
		if err := w.out.Rename(filepath.Join(workDirName, name), name); err != nil {
			return err
		}
	}
	w.hasCheckpoint = false
	dir, err := w.out.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// create writes a file and syncs it to disk.
func create(dir *os.Root, name string, write func(*bufio.Writer) error) error {
	f, err := dir.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<16)
	return cmp.Or(write(w), w.Flush(), f.Sync(), f.Close())
}
