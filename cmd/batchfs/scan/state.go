package scan

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
)

// openState opens the file in the user's cache directory in which a check saves its results, one
// line for each part. Unless restart is true, it also returns the results of an interrupted check
// with the same key, without incomplete lines.
func openState(key string, restart bool) (state *os.File, done []result, err error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, nil, err
	}
	dir = filepath.Join(dir, "batchfs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	flags := os.O_CREATE | os.O_RDWR | os.O_APPEND
	if restart {
		flags |= os.O_TRUNC
	}
	if state, err = os.OpenFile(filepath.Join(dir, "check-"+key), flags, 0o600); err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(state)
	if err != nil {
		state.Close()
		return nil, nil, err
	}
	for line := range bytes.Lines(text) {
		var r result
		if json.Unmarshal(line, &r) == nil {
			done = append(done, r)
		}
	}
	return state, done, nil
}

func (r result) save(state *os.File) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// The first newline ends the last line of an earlier check, which may be incomplete.
	_, err = state.Write(append(append([]byte{'\n'}, line...), '\n'))
	return err
}
