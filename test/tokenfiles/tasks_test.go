package tokenfiles

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// newPlan writes a plan for the texts, with about this number of units, and returns its path.
func (x *texts) newPlan(t testing.TB, units int64) string {
	t.Helper()
	all := int64(0)
	for _, file := range x.files {
		all += e2e.Must(os.Stat(file))(t).Size()
	}
	path := filepath.Join(x.dir, "plan.json")
	args := slices.DeleteFunc(slices.Clone(x.args), func(arg string) bool { return arg == "--shard-tokens" || arg == fmt.Sprint(shardTokens) })
	e2e.Run(t, append([]string{e2e.PlainBatchfs, "prepare", "--plan", path, "--unit-bytes", fmt.Sprint(all / units)}, args...)...)
	return path
}

func task(plan string, i, n int) prepare {
	return prepare{"--plan", plan, "--task", fmt.Sprintf("%d/%d", i, n)}
}

func finish(plan string) prepare { return prepare{"--plan", plan, "--finish", "--verify"} }

// wantTaskFiles returns the files of one task that is not interrupted.
func wantTaskFiles(t testing.TB, plan string) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "want")
	e2e.NoError(t, write(t, task(plan, 0, 1), dir))
	e2e.NoError(t, write(t, finish(plan), dir))
	return files(t, dir)
}

// Tasks that are killed before any change to the file system, twice, and then run in another
// number, write the files of one task that is not interrupted. Meanwhile, nothing can be mounted.
func TestTasksKilledAtEveryChange(t *testing.T) {
	t.Parallel()
	x := newTexts(t, 16)
	plan := x.newPlan(t, 3)
	want := wantTaskFiles(t, plan)
	source := t.TempDir()
	slow := e2e.NewSlowFS(t, source)
	step := e2e.NormalOrShort(5, 17)
	if e2e.InSoak() {
		step = 1
	}
	for n, killed := 1, true; killed; n += step {
		dir, slowDir := filepath.Join(source, fmt.Sprint(n)), filepath.Join(slow.Dir, fmt.Sprint(n))
		when := ""
		for i, at := range []int{n, n/2 + 1} {
			slow.KillAt(t, at)
			err := write(t, task(plan, 0, 1), slowDir)
			changes := slow.Changes(t)
			slow.KillAt(t, 0)
			if err == nil {
				if killed = i > 0; !killed {
					t.Logf("%d changes", len(changes))
				}
				break
			}
			when += fmt.Sprintf("killed after change %d, %s; ", at-1, changes[len(changes)-1])
			if err != errKilled {
				t.Fatalf("%s: %v", when, err)
			}
			if whyNotMountable(t, dir) == "" {
				t.Errorf("%s: can be mounted", when)
			}
		}
		for i := range 3 {
			e2e.NoError(t, write(t, task(plan, i, 3), slowDir))
		}
		if whyNotMountable(t, dir) == "" {
			t.Errorf("%sbefore --finish: can be mounted", when)
		}
		e2e.NoError(t, write(t, finish(plan), slowDir))
		if !maps.Equal(files(t, dir), want) {
			t.Errorf("%sand finished: the files differ from those of an uninterrupted task", when)
		}
		if left := e2e.Must(filepath.Glob(filepath.Join(dir, ".units", "tmp-*")))(t); len(left) > 0 {
			t.Errorf("%sand finished: %q is left", when, left)
		}
		if why := whyNotMountable(t, dir); why != "" {
			t.Errorf("%sand finished: %s", when, why)
		}
		e2e.NoError(t, os.RemoveAll(dir))
	}
}

// 1, 3 and 16 tasks, some of which run twice at once and some of which are killed, write the same
// files, and mounts of these have the same batches.
func TestTasksAtOnce(t *testing.T) {
	t.Parallel()
	x := newTexts(t, manyLines)
	plan := x.newPlan(t, 20)
	want := wantTaskFiles(t, plan)
	if len(want) < 20*3 {
		t.Errorf("the files are %q, want more", slices.Sorted(maps.Keys(want)))
	}
	batches := ""
	for _, n := range []int{1, 3, 16} {
		dir := filepath.Join(t.TempDir(), "out")
		var tasks sync.WaitGroup
		for i := range n {
			for range 2 {
				tasks.Go(func() {
					if err := write(t, task(plan, i, n), dir); err != nil {
						t.Errorf("task %d/%d: %v", i, n, err)
					}
				})
			}
			tasks.Go(func() { // killed twice: when it starts, and while it has begun a unit
				for _, begun := range []string{"", "tmp-*"} {
					cmd := exec.Command(e2e.PlainBatchfs, append([]string{"prepare"}, append(task(plan, i, n), "--out", dir)...)...)
					e2e.NoError(t, cmd.Start())
					ended := make(chan struct{})
					go func() { cmd.Wait(); close(ended) }()
					for isRunning := begun != ""; isRunning; {
						found, _ := filepath.Glob(filepath.Join(dir, ".units", begun))
						select {
						case <-ended:
							isRunning = false
						default:
							isRunning = len(found) == 0
						}
					}
					cmd.Process.Signal(syscall.SIGKILL)
					<-ended
				}
			})
		}
		tasks.Wait()
		e2e.NoError(t, write(t, finish(plan), dir))
		e2e.NoError(t, write(t, finish(plan), dir))
		if !maps.Equal(files(t, dir), want) {
			t.Errorf("the files of %d tasks differ from those of one", n)
		}
		now := strings.Join(e2e.Digests(t, "train", 0, 20, "--data", dir, "--set", "batch.block_size=64"), " ")
		if batches != "" && batches != now {
			t.Errorf("the batches of %d tasks differ", n)
		}
		batches = now
	}
}

// A scheduler's variables say which task a process is.
func TestTaskOfAScheduler(t *testing.T) {
	t.Parallel()
	x := newTexts(t, 16)
	plan := x.newPlan(t, 5)
	want := wantTaskFiles(t, plan)
	for name, scheduler := range map[string]struct {
		args []string
		env  func(i int) []string
	}{
		"Slurm": {nil, func(i int) []string {
			return []string{fmt.Sprint("SLURM_ARRAY_TASK_ID=", i+1), "SLURM_ARRAY_TASK_COUNT=3", "SLURM_ARRAY_TASK_MIN=1", "SLURM_ARRAY_TASK_MAX=3"}
		}},
		"Kubernetes": {[]string{"--tasks", "3"}, func(i int) []string { return []string{fmt.Sprint("JOB_COMPLETION_INDEX=", i)} }},
	} {
		dir := filepath.Join(t.TempDir(), "out")
		for _, i := range []int{2, 0, 1} {
			args := slices.Concat([]string{"env"}, scheduler.env(i), []string{e2e.PlainBatchfs, "prepare", "--plan", plan, "--out", dir}, scheduler.args)
			if said := e2e.Run(t, args...); !strings.HasPrefix(said, fmt.Sprintf("task %d/3: ", i)) {
				t.Errorf("%s: %s", name, said)
			}
		}
		e2e.NoError(t, write(t, finish(plan), dir))
		if !maps.Equal(files(t, dir), want) {
			t.Errorf("%s: other files", name)
		}
	}
}

// On a full disk, a task fails, and goes on with what has room. It continues once there is more.
func TestTaskDiskFull(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root may mount a tmpfs")
	x := newTexts(t, 40)
	plan := x.newPlan(t, 4)
	want := wantTaskFiles(t, plan)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=150k"); err != nil {
		e2e.SkipOrFail(t, "no tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	err := write(t, task(plan, 0, 1), dir)
	if err == nil || !strings.Contains(err.Error(), "units failed") || !strings.Contains(err.Error(), "no space left on device") || !strings.Contains(err.Error(), "1 units done") {
		t.Errorf("error %v, want that units failed because the disk is full, and that one is done", err)
	}
	e2e.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=64m"))
	e2e.NoError(t, write(t, task(plan, 0, 1), dir))
	e2e.NoError(t, write(t, finish(plan), dir))
	if !maps.Equal(files(t, dir), want) {
		t.Error("the files differ from those of a run on a disk with room")
	}
}
