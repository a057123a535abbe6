package main

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/internal/failure"
	"batchfs/internal/printable"
)

// A report tells another process how a command fares: that it is ready, or why it failed.
type report struct {
	Kind    string `json:"kind"` // ready, end, or the name of a failure.Kind
	Message string `json:"message"`
}

// These are the kinds of reports that are not failures.
const (
	ready = "ready" // batches can be read
	end   = "end"   // cat has written the last batch of the sequence
)

func newReport(err error) *report { return &report{failure.KindOf(err).Name, err.Error()} }

func (r *report) err() error { return failure.Named(r.Kind).Wrap(errors.New(r.Message)) }

const statusFlag = "status-fd"

// A statusFile is the value of --status-fd. It takes one report and is closed then. It is safe for
// concurrent use.
type statusFile struct {
	mu   sync.Mutex
	file *os.File // nil if the flag is not set, or after the report
	text string
}

// registerStatus adds --status-fd to all commands. It is for programs, so only a page describes it.
func registerStatus(root *cobra.Command) {
	root.PersistentFlags().Var(new(statusFile), statusFlag, "write one line of JSON to this `descriptor`: that batches can be read, or why the command failed")
	root.PersistentFlags().MarkHidden(statusFlag)
}

func statusOf(cmd *cobra.Command) *statusFile { return cmd.Flag(statusFlag).Value.(*statusFile) }

func (s *statusFile) Set(text string) error {
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return errors.New("must be the number of a descriptor, from 3 on")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return errors.New("must be an open descriptor")
	}
	s.file, s.text = os.NewFile(uintptr(fd), "--"+statusFlag), text
	return nil
}

func (s *statusFile) String() string { return s.text }
func (s *statusFile) Type() string   { return "int" }

// send writes the first report. Errors do not matter, because nobody reads it then.
func (s *statusFile) send(kind, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return
	}
	line, err := json.Marshal(report{kind, message})
	if err != nil {
		panic(err) // impossible for two strings
	}
	s.file.Write(append(line, '\n'))
	s.file.Close()
	s.file = nil
}

func (s *statusFile) sendError(err error) { s.send(failure.KindOf(err).Name, printable.Error(err)) }
