// Package command has what subcommands share: how they end, by themselves or by a signal, and what
// they report to the program that started them.
package command

import (
	"fmt"
	"io"

	"batchfs/internal/printable"
)

// An ExitStatus is an error that sets the process's exit status and prints nothing.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// A PrintedError is an error that has been printed.
type PrintedError struct{ Err error }

func (e PrintedError) Error() string { return e.Err.Error() }
func (e PrintedError) Unwrap() error { return e.Err }

// PrintError prints an error as batchfs prints all of its errors.
func PrintError(out io.Writer, err error) { io.WriteString(out, "batchfs: "+printable.Error(err)+"\n") }
