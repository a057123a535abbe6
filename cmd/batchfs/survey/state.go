package survey

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
)

// A state keeps what a check has found, so that the next one continues it: a file in the user's cache directory, with a line for
// each segment that was read. Its name says what is checked, and how.
type state struct {
	path string
	file *os.File
}

// openState opens the state of a check with this key, and returns what it has. A line that was not written to its end is left out.
func openState(key string, restart bool) (_ *state, done []result, err error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, nil, err
	}
	dir = filepath.Join(dir, "batchfs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	s := &state{path: filepath.Join(dir, "check-"+key)}
	flags := os.O_CREATE | os.O_RDWR | os.O_APPEND
	if restart {
		flags |= os.O_TRUNC
	}
	if s.file, err = os.OpenFile(s.path, flags, 0o600); err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(s.file)
	if err != nil {
		s.file.Close()
		return nil, nil, err
	}
	for line := range bytes.Lines(text) {
		var r result
		if json.Unmarshal(line, &r) == nil {
			done = append(done, r)
		}
	}
	return s, done, nil
}

func (s *state) add(r result) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// A newline before it, too, because the last line may lack its end.
	_, err = s.file.Write(append(append([]byte{'\n'}, line...), '\n'))
	return err
}
