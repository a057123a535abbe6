package prepare

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A workplace is the directory of an unfinished run, DIR/.prepare. The files that DIR is to get are written there, under their
// names; others begin with ".".
type workplace struct {
	dir  string
	lock *os.File
	kept bool // there is a checkpoint to go on from
}

const (
	workplaceName = ".prepare"
	stateName     = ".state.json"
)

// A state is a checkpoint: all files of the workplace hold at least what it says, and what they hold beyond is written again.
type state struct {
	Settings settings                `json:"settings"`
	Inputs   string                  `json:"inputs"` // their digest
	Position position                `json:"position"`
	Splits   [len(splits)]splitState `json:"splits"`

	Complete bool     `json:"complete"` // the files need only be moved to DIR
	Stale    []string `json:"stale"`    // files of DIR to remove then
}

// openWorkplace makes DIR and its workplace where they are missing. Only one process at a time has it.
func openWorkplace(out string) (*workplace, error) {
	w := &workplace{dir: filepath.Join(out, workplaceName)}
	err := os.MkdirAll(w.dir, 0o777)
	if err == nil {
		w.lock, err = os.Open(w.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	if err := syscall.Flock(int(w.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		w.lock.Close()
		return nil, fmt.Errorf("%s: another batchfs prepare writes there: wait until it has ended", w.dir)
	}
	return w, nil
}

// close leaves the workplace, and removes it unless there is a checkpoint.
func (w *workplace) close() {
	if !w.kept {
		os.RemoveAll(w.dir)
	}
	w.lock.Close()
}

// clear removes what another run left.
func (w *workplace) clear() error {
	entries, err := os.ReadDir(w.dir)
	for _, e := range entries {
		if err == nil {
			err = os.RemoveAll(filepath.Join(w.dir, e.Name()))
		}
	}
	return err
}

// load returns the last checkpoint, or nil if there is none.
func (w *workplace) load() (*state, error) {
	raw, err := os.ReadFile(filepath.Join(w.dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	s := new(state)
	if err == nil {
		err = json.Unmarshal(raw, s)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: give --force to begin again", filepath.Join(w.dir, stateName), err)
	}
	return s, nil
}

// save makes s the checkpoint.
func (w *workplace) save(s *state) error {
	path := filepath.Join(w.dir, stateName)
	err := create(path+".new", func(out *bufio.Writer) error { return json.NewEncoder(out).Encode(s) })
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = w.lock.Sync()
	}
	w.kept = w.kept || err == nil
	return err
}

// files are the names that DIR is to get. The vocabulary is first: a mount that follows a change of the tokens reads it again then.
func (w *workplace) files() ([]string, error) {
	entries, err := os.ReadDir(w.dir)
	var names []string
	for _, e := range entries {
		switch {
		case e.Name() == manifestName:
			names = append([]string{manifestName}, names...)
		case !strings.HasPrefix(e.Name(), "."):
			names = append(names, e.Name())
		}
	}
	return names, err
}

// publish moves the files of a complete run to DIR, and removes the workplace.
func (w *workplace) publish(s *state) error {
	out := filepath.Dir(w.dir)
	for _, name := range s.Stale {
		if err := os.Remove(filepath.Join(out, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	names, err := w.files()
	for _, name := range names {
		if err == nil {
			err = os.Rename(filepath.Join(w.dir, name), filepath.Join(out, name))
		}
	}
	if err != nil {
		return err
	}
	w.kept = false
	dir, err := os.Open(out)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
