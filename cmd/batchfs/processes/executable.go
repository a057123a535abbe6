package processes

import (
	"fmt"
	"os"
	"os/exec"

	"batchfs/fs/supervise"
)

// An executable is the program of the workers. It is an open file, because the path may name
// another program by the time a worker starts, or none.
type executable struct {
	path string   // a restart opens the program at this path
	file *os.File // the program of the worker that serves
	next *os.File // the program that the last restart opened, until it becomes file
}

func openExecutable() (*executable, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/self/exe")
	return &executable{path: path, file: file}, err
}

// worker returns the command of a worker. In a restart, the worker runs the program that is now at
// the path.
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

// adoptNext has all later workers run the program that the last restart has found.
func (e *executable) adoptNext() {
	e.file.Close()
	e.file, e.next = e.next, nil
}
