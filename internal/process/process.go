// Package process reads information about processes and threads from /proc.
package process

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"batchfs/internal/printable"
)

// Stat is part of what /proc says about a process or a thread.
type Stat struct {
	// State is R (runs or wants to), S (sleeps), D (waits for a disk), T (stopped by a signal), Z
	// (ended but not waited for), …
	State      byte
	StartTicks uint64             // start time, in clock ticks since boot
	ExitStatus syscall.WaitStatus // how it ended, in state Z; 0 if this user may not know
	CPU        time.Duration      // processor time used, in steps of 10 ms
}

// HasEnded reports whether the process has ended, but has not been waited for.
func (s Stat) HasEnded() bool { return s.State == 'Z' || s.State == 'X' }

// Dir returns the directory of a process in /proc.
func Dir(pid int) string { return fmt.Sprintf("/proc/%d", pid) }

// All returns the ids of the processes that this one can see, sorted.
func All() []int { return numericNames("/proc") }

// Threads returns the ids of a process's threads, sorted. It is empty if there is no such process.
func Threads(pid int) []int { return numericNames(Dir(pid) + "/task") }

func numericNames(dir string) (list []int) {
	open, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer open.Close()
	names, _ := open.Readdirnames(-1) // the process may end in the meantime
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// Describe returns the name of a process for a message, such as "process 12 (python)".
func Describe(pid int) string {
	comm, _ := os.ReadFile(Dir(pid) + "/comm")
	return fmt.Sprintf("process %d (%s)", pid, printable.Name(strings.TrimSpace(string(comm))))
}

// OfThread returns the process of a thread, and the thread's name, escaped for a message. If there
// is no such thread, or it is in another PID namespace, OfThread returns the thread's id and an
// empty string.
func OfThread(thread int) (pid int, command string) {
	pid = thread
	readStatus(thread, func(name, value string) error {
		switch name {
		case "Name":
			command = printable.Name(strings.TrimSpace(value))
		case "Tgid":
			fmt.Sscan(value, &pid)
		}
		return nil
	})
	return pid, command
}

// User returns the user and the groups of a process. If there is no such process, the error wraps
// os.ErrNotExist.
func User(pid int) (*syscall.Credential, error) {
	u := new(syscall.Credential)
	err := readStatus(pid, func(name, value string) (err error) {
		switch name {
		case "Uid":
			_, err = fmt.Sscan(value, &u.Uid)
		case "Gid":
			_, err = fmt.Sscan(value, &u.Gid)
		case "Groups":
			for id := range strings.FieldsSeq(value) {
				var group uint32
				_, err = fmt.Sscan(id, &group)
				u.Groups = append(u.Groups, group)
			}
		}
		return err
	})
	return u, err
}

// IsPending reports whether a signal is pending for a thread itself, rather than for its process.
// It is false if there is no such thread, or if it is in another PID namespace.
func IsPending(thread int, sig syscall.Signal) bool {
	var pending uint64
	readStatus(thread, func(name, value string) (err error) {
		if name == "SigPnd" {
			pending, err = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
		return err
	})
	return pending&(1<<(sig-1)) != 0
}

// readStatus calls visit for each line of the status file of a process or a thread. It stops at the
// first error.
func readStatus(id int, visit func(name, value string) error) error {
	status, err := os.ReadFile(Dir(id) + "/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if err := visit(name, value); err != nil {
			return fmt.Errorf("%s/status: %q: %w", Dir(id), line, err)
		}
	}
	return nil
}

// ReadStat reads the file stat in dir, the directory of a process (see [Dir]) or of a thread.
func ReadStat(dir string) (Stat, error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Stat{}, err
	}
	// The second field is the command, which may contain spaces and parentheses.
	end := strings.LastIndexByte(string(text), ')')
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 50 {
		return Stat{}, fmt.Errorf("%s/stat: %q", dir, text)
	}
	var n [4]uint64
	for i, field := range []int{19, 49, 11, 12} { // start, exit status, user time, system time
		if n[i], err = strconv.ParseUint(fields[field], 10, 64); err != nil {
			return Stat{}, fmt.Errorf("%s/stat: %w", dir, err)
		}
	}
	cpu := time.Duration(n[2]+n[3]) * time.Second / 100
	return Stat{State: fields[0][0], StartTicks: n[0], ExitStatus: syscall.WaitStatus(n[1]), CPU: cpu}, nil
}

// Resident returns the resident memory of a process in bytes, or 0 if there is no such process.
func Resident(pid int) int64 {
	_, resident := memory(pid)
	return resident
}

// AddressSpace returns how much of its address space a process uses, in bytes, or 0 if there is no
// such process.
func AddressSpace(pid int) int64 {
	size, _ := memory(pid)
	return size
}

func memory(pid int) (size, resident int64) {
	statm, _ := os.ReadFile(Dir(pid) + "/statm")
	fmt.Sscan(string(statm), &size, &resident)
	page := int64(os.Getpagesize())
	return size * page, resident * page
}
