package processes

import (
	"fmt"
	"os"
	"os/exec"

	"batchfs/fs/supervise"
)

// An executable is the program that workers run. They run its open file, because its path may name
// another one by then, or none.
type executable struct {
	path string   // path of the program for restarts
	file *os.File // program for replacing dead workers
	next *os.File // program of the last restart, or nil if file is
}

func openExecutable() (*executable, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/self/exe")
	return &executable{path: path, file: file}, err
}

// worker returns the command of a worker. That of a restart runs what path names now.
func (e *executable) worker(isRestart bool) *exec.Cmd {
	file, args := e.file, []string{"worker"}
	if isRestart {
		next, err := os.Open(e.path)
		if err != nil {
			return &exec.Cmd{Err: err}
		}
		e.next.Close()
		e.next, file, args = next, next, append(args, "--restart")
	}
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", supervise.ExtraFd), args...)
	cmd.Args[0], cmd.ExtraFiles = e.path, []*os.File{file}
	return cmd
}

// useNext makes the program of the last restart that of all later workers.
func (e *executable) useNext() {
	e.file.Close()
	e.file, e.next = e.next, nil
}
