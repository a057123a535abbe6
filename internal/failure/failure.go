// Package failure classifies errors for other programs, by the exit status of a command and by a
// name. The text of an error is for people.
package failure

import "errors"

// A Kind is a kind of failure.
type Kind struct {
	Name    string
	Status  int    // exit status of the command; as in sysexits.h, where one fits
	Meaning string // in Markdown
}

// Other is the kind of all errors without another one.
var Other = &Kind{"failed", 1, "any other failure, such as a value that a flag does not take; `check`, `doctor` and `why` found a problem"}

// These are the other kinds. Exit statuses 2 and 3 are those of a worker that crashed.
var (
	Usage      = &Kind{"usage", 64, "the command line does not fit the usage of the command: an unknown command or flag, too few or too many arguments, or a flag's value of another type"}
	Data       = &Kind{"data", 65, "token files that a mount or a batch needs are missing, wrong or cannot be read, have changed, or do not suit the configuration"}
	NoFUSE     = &Kind{"no_fuse", 69, "this machine or this user cannot mount; `cat` and `batchfs.open` in Python read the same batches without a mount"}
	Mountpoint = &Kind{"mountpoint", 73, "the mountpoint does not exist or is not an empty directory, or no batchfs is mounted there"}
	Busy       = &Kind{"busy", 75, "a batchfs is already mounted on the mountpoint, or another process is mounting there"}
	Config     = &Kind{"config", 78, "the configuration is wrong: its file, `--data`, `--set`, or the settings in a path; or `restart` cannot apply it to the mount"}
)

// Kinds lists all kinds.
var Kinds = []*Kind{Other, Usage, Data, NoFUSE, Mountpoint, Busy, Config}

// Named returns the kind with a name, or Other if there is none.
func Named(name string) *Kind {
	for _, k := range Kinds {
		if k.Name == name {
			return k
		}
	}
	return Other
}

// OfStatus returns the kind of the failure of a command with an exit status, or Other if there is
// none.
func OfStatus(status int) *Kind {
	for _, k := range Kinds {
		if k.Status == status {
			return k
		}
	}
	return Other
}

// KindOf returns the kind of an error.
func KindOf(err error) *Kind {
	var c classified
	if errors.As(err, &c) {
		return c.kind
	}
	return Other
}

type classified struct {
	error
	kind *Kind
}

func (c classified) Unwrap() error { return c.error }

// Wrap returns err as an error of kind k with the same text, unless err has a kind already, which
// is closer to the cause. It returns nil if err is nil.
func (k *Kind) Wrap(err error) error {
	if err == nil || KindOf(err) != Other {
		return err
	}
	return classified{err, k}
}
