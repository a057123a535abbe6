package units

import (
	"fmt"
	"strconv"
	"strings"
)

// A Task does every Of-th unit, beginning with unit Index.
type Task struct{ Index, Of int }

// ParseTask parses the value of --task, such as 3/16.
func ParseTask(text string) (t Task, err error) {
	index, of, _ := strings.Cut(text, "/")
	t.Index, err = strconv.Atoi(index)
	if err == nil {
		t.Of, err = strconv.Atoi(of)
	}
	if err != nil || !t.isValid() {
		return t, fmt.Errorf("--task: must be I/N, where I counts from 0 to N-1, such as 3/16 (got %q)", text)
	}
	return t, nil
}

func (t Task) isValid() bool { return 0 <= t.Index && t.Index < t.Of }

// TaskOf returns the task that a scheduler's environment asks for: one of a Slurm array or of a
// Kubernetes Indexed Job. tasks is the number of tasks, or 0 to take it from the environment, where
// only Slurm has it. If the array has gaps because a part of a job is repeated, its size does not
// say how many tasks there are, so tasks must.
func TaskOf(getenv func(string) string, tasks int) (Task, error) {
	number := func(name string) (int, error) {
		n, err := strconv.Atoi(getenv(name))
		if err != nil {
			return 0, fmt.Errorf("%s: must be a whole number (got %q): give the task with --task I/N", name, getenv(name))
		}
		return n, nil
	}
	name := "JOB_COMPLETION_INDEX"
	isSlurm := getenv("SLURM_ARRAY_TASK_ID") != ""
	if isSlurm {
		name = "SLURM_ARRAY_TASK_ID"
	}
	if getenv(name) == "" {
		return Task{}, fmt.Errorf("--task: give I/N, such as 3/16, because neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set")
	}
	index, err := number(name)
	switch {
	case err != nil:
		return Task{}, err
	case tasks == 0 && !isSlurm:
		return Task{}, fmt.Errorf("--tasks: give the number of tasks, which is the job's completions, because Kubernetes sets only %s", name)
	case tasks == 0:
		first, err := number("SLURM_ARRAY_TASK_MIN")
		if err == nil {
			tasks, err = number("SLURM_ARRAY_TASK_COUNT")
		}
		if err != nil {
			return Task{}, err
		}
		if last := getenv("SLURM_ARRAY_TASK_MAX"); last != "" && last != strconv.Itoa(first+tasks-1) {
			return Task{}, fmt.Errorf("--tasks: give the number of tasks of the whole job, because the array from %d to %s has only %d", first, last, tasks)
		}
		index -= first
	}
	t := Task{index, tasks}
	if !t.isValid() {
		return t, fmt.Errorf("%s: must be from 0 to %d for %d tasks (got %d): give the task with --task I/N", name, tasks-1, tasks, index)
	}
	return t, nil
}

// Units returns the units of a task, out of the first n.
func (t Task) Units(n int) (list []int) {
	for i := t.Index; i < n; i += min(t.Of, n) { // the sum does not overflow
		list = append(list, i)
	}
	return list
}

func (t Task) String() string { return fmt.Sprintf("%d/%d", t.Index, t.Of) }
