package command

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

// A Report tells another process how a command fares: that it is ready, or why it failed.
type Report struct {
	Kind    string `json:"kind"` // ready, end, or the name of a failure.Kind
	Message string `json:"message"`
}

// These are the kinds of reports that are not failures.
const (
	Ready = "ready" // batches can be read
	End   = "end"   // cat has written the last batch of the sequence
)

// NewReport returns the report of a failure.
func NewReport(err error) *Report { return &Report{failure.KindOf(err).Name, err.Error()} }

// Err returns the failure that r reports.
func (r *Report) Err() error { return failure.Named(r.Kind).Wrap(errors.New(r.Message)) }

const statusFlag = "status-fd"

// A StatusFile is the value of --status-fd. It takes one report and is closed then. It is safe for
// concurrent use.
type StatusFile struct {
	mu   sync.Mutex
	file *os.File // nil if the flag is not set, or after the report
	text string
}

// RegisterStatus adds --status-fd to all commands. It is for programs, so only a page describes it.
func RegisterStatus(root *cobra.Command) {
	root.PersistentFlags().Var(new(StatusFile), statusFlag, "write one line of JSON to this `descriptor`: that batches can be read, or why the command failed")
	root.PersistentFlags().MarkHidden(statusFlag)
}

// StatusOf returns the file of --status-fd, to which cmd sends its report.
func StatusOf(cmd *cobra.Command) *StatusFile { return cmd.Flag(statusFlag).Value.(*StatusFile) }

// Set implements pflag.Value.
func (s *StatusFile) Set(text string) error {
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

// String implements pflag.Value.
func (s *StatusFile) String() string { return s.text }

// Type implements pflag.Value.
func (s *StatusFile) Type() string { return "int" }

// Send writes the first report. Errors do not matter, because nobody reads it then.
func (s *StatusFile) Send(kind, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return
	}
	line, err := json.Marshal(Report{kind, message})
	if err != nil {
		panic(err) // impossible for two strings
	}
	s.file.Write(append(line, '\n'))
	s.file.Close()
	s.file = nil
}

// SendError reports a failure, unless a report has been sent.
func (s *StatusFile) SendError(err error) { s.Send(failure.KindOf(err).Name, printable.Error(err)) }
