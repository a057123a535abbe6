package soak

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// While workers are killed and the kernel forgets settings, each lookup finds the settings that it
// names. In the end, only settings in use are left. A mount asks the kernel three times, two
// seconds apart, before it forgets settings.
func TestSettingsAreForgotten(t *testing.T) {
	t.Parallel()
	e2e.NeedRoot(t, "only root may have the kernel forget what is not in use")
	config, _ := e2e.SmallConfig(t, 1)
	cmd := exec.Command(e2e.FaultyBatchfs)
	cmd.Env = append(os.Environ(), "BATCHFS_FAULTS=counting:kill:3000 added:kill:3000 forget:kill:3000 retire:kill:3000")
	m := e2e.MountProgram(t, cmd, "-c", config)
	m.AwaitStandby(t)
	forget := func() { // a remount makes the kernel forget everything that is not in use
		e2e.Run(t, "mount", "-i", "-o", "remount,ro", m.Dir)
	}
	inUse := []string{"block_size=30", "block_size=40", "block_size=50"}
	user := e2e.StartHandles(t, m.Dir)
	for _, settings := range inUse {
		user.Do("open val/%s/batch/1", settings)
	}
	lookers := []*e2e.Client{}
	for range 2 {
		c := e2e.StartClient(t, exec.Command(e2e.Python, "clients/settings.py", m.Path("val")))
		c.AwaitReady(t)
		lookers = append(lookers, c)
	}

	strikes := 0
	for end := time.Now().Add(e2e.NormalOrSoak(0, 30*time.Minute)); time.Now().Before(end) || strikes < 9; {
		time.Sleep(time.Duration(rand.Int64N(int64(200 * time.Millisecond))))
		if worker := m.Worker(t); worker > 0 {
			if rand.IntN(3) == 0 {
				// This may fail because a worker dies meanwhile.
				e2e.Try(t, e2e.PlainBatchfs, "restart", m.Dir)
			} else {
				e2e.Kill(t, m, worker)
			}
			strikes++
		}
		forget()
	}
	for _, c := range lookers {
		e2e.Equal(t, "the errors that clients/settings.py found", c.End(t), "\n")
	}

	ended := time.Now()
	forget()
	t.Logf("after %d strikes, the mount has %d settings directories", strikes, len(settingsOf(t, m)))
	e2e.Await(t, "the other settings directories to be forgotten", func() (any, bool) {
		left := settingsOf(t, m)
		return left, slices.Equal(left, inUse)
	})
	e2e.CheckDuration(t, "forgetting the others", time.Since(ended), time.Minute)
	for i := range inUse {
		e2e.Contains(t, "a read of a file in use", user.Do("read %d 0 10", i), "10 ")
	}
}

var settingsLine = regexp.MustCompile(`(?m)^batchfs_cursor{settings="(.+)",split="val"}`)

// settingsOf returns the sorted settings of val that have a directory in the mount.
func settingsOf(t *testing.T, m *e2e.Mounted) (names []string) {
	t.Helper()
	// This may fail because a worker dies meanwhile.
	metrics, _, _ := e2e.Try(t, "cat", m.Path("metrics"))
	for _, line := range settingsLine.FindAllStringSubmatch(metrics, -1) {
		names = append(names, line[1])
	}
	slices.Sort(names)
	return names
}
