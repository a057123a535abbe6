package processes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"batchfs/fs/supervise"
)

// After a restart, workers run the program that the restart found, even if its worker has ended and
// the path names another program or none.
func TestProgramOfWorkers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	replace := func(program string) {
		t.Helper()
		os.Remove(path)
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho "+program+" $@\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	replace("first")
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	e := &executable{path: path, file: file}
	check := func(isRestart bool, want string) {
		t.Helper()
		cmd := e.worker(isRestart)
		for range supervise.ExtraFd - 3 { // the descriptors that the supervisor adds
			cmd.ExtraFiles = append([]*os.File{file}, cmd.ExtraFiles...)
		}
		if out, err := cmd.Output(); err != nil || string(out) != want+"\n" {
			t.Errorf("restart %v: %q (%v), want %q", isRestart, out, err, want)
		}
	}
	replace("second")
	check(false, "first worker")
	check(true, "second worker --restart")
	replace("third")
	check(false, "first worker")
	check(true, "third worker --restart")
	os.Remove(path)
	if err := e.worker(true).Start(); !os.IsNotExist(err) {
		t.Errorf("a restart without a program: %v", err)
	}
	e.endRestart(true)
	check(false, "third worker")
	replace("fourth")
	check(true, "fourth worker --restart")
	rejected := e.next
	e.endRestart(false)
	check(false, "third worker")
	if err := rejected.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the program of a rejected restart stays open: %v", err)
	}
}
