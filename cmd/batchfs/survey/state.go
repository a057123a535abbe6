package survey

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// A state keeps what a check has found, so that the next one continues it. It is a file with a line for each segment that was
// read, in the user's cache directory. Its name says what is checked, and how.
type state struct {
	path string
	file *os.File
}

// openState opens the state of a check with this key, and returns what it has. A line that was not written to its end is left out.
func openState(key string, restart bool) (*state, []result, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, nil, err
	}
	dir = filepath.Join(dir, "batchfs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	s := &state{path: filepath.Join(dir, "check-"+key)}
	if restart {
		if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, err
		}
	}
	if s.file, err = os.OpenFile(s.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return nil, nil, err
	}
	var done []result
	for in := bufio.NewReader(s.file); ; {
		line, err := in.ReadBytes('\n')
		var r result
		if json.Unmarshal(line, &r) == nil {
			done = append(done, r)
		}
		if err == io.EOF {
			return s, done, nil
		}
		if err != nil {
			s.file.Close()
			return nil, nil, err
		}
	}
}

// add notes the result of a segment.
func (s *state) add(r result) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// A newline before it, too, because the last line may lack its end.
	_, err = s.file.Write(append(append([]byte{'\n'}, line...), '\n'))
	return err
}

// close keeps the state for the next check.
func (s *state) close() { s.file.Close() }

// remove forgets the state. One that stays is only of use for the same files.
func (s *state) remove() {
	s.file.Close()
	os.Remove(s.path)
}
