package state

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"batchfs/internal/failure"
)

// Each restart has its own outcome, even if others have ended since.
func TestRestartOutcomes(t *testing.T) {
	file, s := mapSections(t, func(_ int, bytes uint64) uint64 { return bytes })
	command := mapAgain(t, file)
	s.EndRestart(failure.Config.Wrap(errors.New("unknown key")))
	s.EndRestart(nil)
	s.EndRestart(errors.New("exit status 2"))
	for n, want := range []string{1: "unknown key (config)", 2: "<nil> (failed)", 3: "exit status 2 (failed)"} {
		if n > 0 {
			checkRestart(t, command, uint64(n), want)
		}
	}
	if got := command.LastRestart.String(); got != "exit status 2" || command.Restarts.Load() != 3 {
		t.Errorf("a command of another version sees %d restarts, the last one with %q", command.Restarts.Load(), got)
	}
	for range s.outcomes {
		s.EndRestart(errors.New("too late"))
	}
	checkRestart(t, command, 3, "too late (failed)")
}

// A supervisor of an earlier build records only the text of the last outcome.
func TestRestartOutcomeOfEarlierBuild(t *testing.T) {
	file, s := mapSections(t, func(i int, bytes uint64) uint64 {
		if i == 0 {
			return uint64(unsafe.Offsetof(mountState{}.outcomes))
		}
		return bytes
	})
	command := mapAgain(t, file)
	s.EndRestart(failure.Config.Wrap(errors.New("unknown key")))
	checkRestart(t, command, 1, "unknown key (failed)")
	s.EndRestart(nil)
	checkRestart(t, command, 2, "<nil> (failed)")
}

// checkRestart checks the error of restart n, followed by its kind.
func checkRestart(t *testing.T, s *Shared, n uint64, want string) {
	t.Helper()
	err := s.RestartError(n)
	if got := fmt.Sprintf("%v (%s)", err, failure.KindOf(err).Name); got != want {
		t.Errorf("restart %d ended with %s, want %s", n, got, want)
	}
}
