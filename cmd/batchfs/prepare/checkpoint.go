package prepare

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

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
	w.hasCheckpoint = saved != nil || err != nil // a user may repair a checkpoint with an error
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
			return saved, err
		}
	}
	if err != nil && !o.force {
		return nil, err
	}
	if _, err := o.staleFiles(p); err != nil {
		return nil, err
	}
	w.hasCheckpoint = false
	return begin, w.clear()
}

// continuesWith reports whether a run with other settings has the same output up to here, because
// they only say what to do about invalid text, of which there was none. A text that has begun
// cannot be left out.
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
