package prepare

import (
	"bufio"
	"cmp"
	"encoding/json"
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
	isOwn         bool     // whether close may remove the files, because they are those of this run
	hasCheckpoint bool     // whether another run can continue this one
	isKept        bool     // see keepFiles
}

const workDirName = ".prepare"

// createdFilePattern matches the files that prepare may remove from the working directory. These
// are its own, and those of a batchfs.writer that was killed before its first checkpoint.
var createdFilePattern = regexp.MustCompile(
	`^vocab\.json$|^\.state\.json(\.new)?$|^\.(writer|finish)\.json\.new$|^\.parquet-\d+$|` +
		`^\.(train|val)(_\d+)?\.bin\.ends$|^(train|val)(_\d+)?\.\w+\.bin$|` + outputFilePattern.String())

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
		w.out.Close()
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
		err = errors.New("belongs to an unfinished batchfs.writer: continue it in Python with resume=True, or remove the directory")
	}
	if err != nil {
		w.lock.Close()
		w.dir.Close()
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

// keepFiles makes close keep the files. They are complete, but err prevents moving them, and their
// text may come from a pipe, which cannot be read again. It returns err with the directory of the
// files, unless they have a checkpoint, from which the same command continues.
func (w *workDir) keepFiles(err error) error {
	w.isKept = true
	if w.hasCheckpoint {
		return err
	}
	return fmt.Errorf("%w; the complete files are in %s: move them away before you write to the same DIR again", err, w.dir.Name())
}

// close removes the working directory unless it has a checkpoint, is kept, or has files of another
// run, which was killed.
func (w *workDir) close() {
	if !w.hasCheckpoint && !w.isKept {
		if w.isOwn {
			w.clear()
		}
		w.out.Remove(workDirName) // fails if it is not empty
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

// removePublished removes the working directory that is left if a run is killed after it has moved
// all files to DIR. It keeps a directory in which there are files to move, or the checkpoint of an
// unfinished run.
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
	w.isOwn, w.hasCheckpoint = true, err != nil || namesErr != nil || len(names) > 0 || s != nil && !s.Complete
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
			return w.keepFiles(err)
		}
	}
	for _, name := range names {
		if err := w.out.Rename(filepath.Join(workDirName, name), name); err != nil {
			return w.keepFiles(err)
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

const checkpointName = ".state.json"

// A checkpoint records how far a run has come. Files in the working directory may be longer than it
// says; everything beyond is written again.
type checkpoint struct {
	Settings settings                `json:"settings"`
	Inputs   string                  `json:"inputs"` // digest of the inputs, with their times
	Position position                `json:"position"`
	Splits   [len(splits)]splitState `json:"splits"`
	Notes    notes                   `json:"notes"`

	Complete bool     `json:"complete"` // whether the files only have to be moved to DIR
	Stale    []string `json:"stale"`    // files of an earlier run to remove from DIR first
}

// load returns the checkpoint, or nil if there is none.
func (w *workDir) load() (*checkpoint, error) {
	raw, err := w.dir.ReadFile(checkpointName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	s := new(checkpoint)
	if err == nil {
		err = json.Unmarshal(raw, s)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: start over with --force", filepath.Join(w.dir.Name(), checkpointName), err)
	}
	return s, nil
}

// checkShards returns an error if a file of a shard that has ended is missing.
func (s *checkpoint) checkShards(w *workDir) error {
	for _, split := range s.Splits {
		for _, shard := range split.Shards {
			for _, name := range outputFormats[s.Settings.Format].files(shard) {
				if _, err := w.dir.Stat(name); err != nil {
					return fmt.Errorf("%s: %w: restore the file, or remove the directory to start over", w.dir.Name(), err)
				}
			}
		}
	}
	return nil
}

// startCheckpoint returns the checkpoint of an unfinished run of the same command, or an empty one.
func (o *options) startCheckpoint(w *workDir, p *plan) (*checkpoint, error) {
	begin := &checkpoint{Settings: p.settings, Inputs: digestInputs(p.files(), true)}
	saved, err := w.load()
	// The user may repair a checkpoint that cannot be read.
	w.hasCheckpoint = saved != nil || err != nil
	if saved != nil {
		switch {
		case saved.Settings != begin.Settings && !saved.continuesWith(begin.Settings):
			savedSettings, _ := json.Marshal(saved.Settings)
			err = fmt.Errorf("%s belongs to an unfinished run with other options: use these again, or start over with --force: %s", w.dir.Name(), savedSettings)
		case saved.Inputs != begin.Inputs:
			err = fmt.Errorf("%s belongs to an unfinished run, and since then the texts, or their sizes or modification times, have changed: "+
				"restore them, or start over with --force", w.dir.Name())
		default:
			saved.Settings = begin.Settings
			if !saved.Complete {
				err = saved.checkShards(w)
			}
			if err == nil {
				w.isOwn = true
				return saved, nil
			}
		}
	}
	if err != nil && !o.force {
		return nil, err
	}
	if _, err := o.staleFiles(p); err != nil {
		return nil, err
	}
	w.isOwn, w.hasCheckpoint = true, false
	return begin, w.clear()
}

// continuesWith reports whether a run with other settings would have written the same files up to
// this checkpoint. It would if the settings differ only in what to do about invalid text, and no
// text was invalid so far. A text of which a part is already written cannot be left out, though.
func (s *checkpoint) continuesWith(other settings) bool {
	if s.Settings.Invalid != "error" || other.Invalid == "skip" && s.Position.Within {
		return false
	}
	other.Invalid = s.Settings.Invalid
	return s.Settings == other
}

// save replaces the checkpoint atomically.
func (w *workDir) save(s *checkpoint) error {
	err := create(w.dir, checkpointName+".new", func(out *bufio.Writer) error { return json.NewEncoder(out).Encode(s) })
	if err == nil {
		err = w.dir.Rename(checkpointName+".new", checkpointName)
	}
	if err == nil {
		err = w.lock.Sync()
	}
	w.hasCheckpoint = w.hasCheckpoint || err == nil
	return err
}
