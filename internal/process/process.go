// Package process reads what /proc says about processes and threads.
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
	State byte               // R runs or wants to, S sleeps, D waits for a disk, T is stopped by a signal, Z has ended and was not waited for, …
	Began uint64             // when it began: clock ticks since the host did
	Ended syscall.WaitStatus // in state Z, how it ended, as far as this user may know
	CPU   time.Duration      // processor time that it got, in steps of 10 ms
}

// Dir is where the kernel tells about a process.
func Dir(pid int) string { return fmt.Sprintf("/proc/%d", pid) }

// All are the ids of the processes that /proc shows to this one.
func All() []int { return numbers("/proc") }

// Threads are the ids of a process's threads.
func Threads(pid int) []int { return numbers(Dir(pid) + "/task") }

func numbers(dir string) (all []int) {
	open, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer open.Close()
	names, _ := open.Readdirnames(-1) // a process may end meanwhile
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

// Describe names a process for a message: process 12 (python).
func Describe(pid int) string {
	comm, _ := os.ReadFile(Dir(pid) + "/comm")
	return fmt.Sprintf("process %d (%s)", pid, printable.Name(strings.TrimSpace(string(comm))))
}

// Of returns the process of a thread, and its command for a message. It returns thread and an empty
// string if there is no such thread, or if it is in another PID namespace.
func Of(thread int) (pid int, command string) {
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

// User returns the user whose process it is, and the groups. The error is os.ReadFile's where there is no such process.
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

// readStatus calls visit for each line of the file status of a process or a thread until it returns
// an error.
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

// ReadStat reads the file stat in a directory of /proc: a process's ([Dir]), or a thread's in its task/.
func ReadStat(dir string) (Stat, error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Stat{}, err
	}
	// The second field is the name, which may hold spaces and parentheses.
	end := strings.LastIndexByte(string(text), ')')
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 50 {
		return Stat{}, fmt.Errorf("%s/stat: %q", dir, text)
	}
	var n [4]uint64
	for i, field := range []int{19, 49, 11, 12} { // when it began, how it ended, ticks in programs, ticks in the kernel
		if n[i], err = strconv.ParseUint(fields[field], 10, 64); err != nil {
			return Stat{}, fmt.Errorf("%s/stat: %w", dir, err)
		}
	}
	cpu := time.Duration(n[2]+n[3]) * time.Second / 100
	return Stat{State: fields[0][0], Began: n[0], Ended: syscall.WaitStatus(n[1]), CPU: cpu}, nil
}

// Resident is the resident memory of a process in bytes, or 0 where there is none.
func Resident(pid int) int64 {
	statm, _ := os.ReadFile(Dir(pid) + "/statm")
	var size, pages int64
	fmt.Sscan(string(statm), &size, &pages)
	return pages * int64(os.Getpagesize())
}
