package faults

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// batchShards is the number of shards from which a batch is read, one row each. If the number of
// all shards is a multiple of 2*batchShards, no batch of rank 0 of 2 is read from the last shard.
const batchShards = 8

var shardSettings = []string{"-c", "/dev/null", "--set", "batch.order=sequential", "--set", "batch.block_size=64", "--set", "batch.world=2",
	"--set", fmt.Sprint("batch.batch_size=", batchShards)}

// shards is a set of n shards in a slow file system, with the settings to mount them.
type shards struct {
	slow     *e2e.SlowFS
	n        int
	last     string // name of the last shard
	settings []string
}

func newSlowShards(t *testing.T, n int) *shards {
	t.Helper()
	dir, s := t.TempDir(), &shards{n: n}
	for i := range n {
		s.last = fmt.Sprintf("%06d.bin", i)
		e2e.Write(t, filepath.Join(dir, s.last), e2e.TokensOfVersion(i%6, 65))
	}
	s.slow = e2e.NewSlowFS(t, dir)
	s.settings = slices.Concat(shardSettings, []string{"--set", "splits.train.tokens=" + s.slow.Dir + "/*.bin"})
	return s
}

// requestedLookups returns how many shards were looked up for requests. Only passes over all shards
// look up the last one, and they do so last. While that lookup hangs, each pass has looked up every
// shard, except for a few whose lookups have not arrived yet.
func (s *shards) requestedLookups(t *testing.T) int {
	t.Helper()
	s.slow.Hang(t, s.last)
	defer s.slow.Delay(t, s.last, 0)
	s.slow.AwaitHanging(t, s.last)
	return s.slow.Count(t, "lookup") - s.slow.Count(t, s.last)*s.n
}

// openNext opens the file next. It returns a function that reads a batch and reports how long that
// took.
func openNext(t *testing.T, mountpoint string) (read func() time.Duration) {
	t.Helper()
	file := e2e.Must(os.Open(filepath.Join(mountpoint, "train/next")))(t)
	t.Cleanup(func() { file.Close() })
	buf := make([]byte, e2e.Must(file.Stat())(t).Size())
	return func() time.Duration {
		t.Helper()
		began := time.Now()
		e2e.Must(file.ReadAt(buf, 0))(t)
		return time.Since(began)
	}
}

// While mount opens many files, it shows its progress on a terminal. Afterwards all reads succeed,
// however long a check of the files takes.
func TestManyShards(t *testing.T) {
	t.Parallel()
	n, reads, request, delay := 80, 20, "open", 300*time.Millisecond
	if e2e.InSoak() {
		n, reads, request, delay = 100_000, 2000, "getattr", 300*time.Microsecond
	}
	s := newSlowShards(t, n)
	s.slow.Delay(t, request, delay)
	mountpoint, began := t.TempDir(), time.Now()
	inTerminal := []string{e2e.Python, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"}
	mount := []string{e2e.Batchfs, "mount", "-d", "--log", filepath.Join(t.TempDir(), "log"), mountpoint}
	out := e2e.Run(t, slices.Concat(inTerminal, mount, s.settings)...)
	t.Cleanup(func() { e2e.Run(t, e2e.Batchfs, "unmount", mountpoint) })
	t.Logf("opening %d files took %v", n, time.Since(began))
	if !regexp.MustCompile(fmt.Sprintf(`opened [1-9]\d* of %d files`, n)).MatchString(out) {
		t.Errorf("mount printed %q, want how many of %d files it opened", out, n)
	}
	s.slow.Delay(t, "open", 0)
	read, slowest := openNext(t, mountpoint), time.Duration(0)
	for range reads {
		slowest = max(slowest, read())
	}
	t.Logf("the slowest of %d reads took %v", reads, slowest)
}

// Batches are read as fast from many shards as from few. Requests look up equally many files, and
// none waits for a check of all files.
func TestManyShardsAreAsFastAsFew(t *testing.T) {
	e2e.SkipIfShort(t)
	const batches, rounds = 50, 5
	many := e2e.NormalOrSoak(4000, 10_000)
	var splits [2]*shards
	var reads [2]func() time.Duration
	var before, requested [2]int
	var slowest [2]time.Duration
	for i, n := range []int{96, many} {
		s := newSlowShards(t, n)
		splits[i] = s
		s.slow.Delay(t, "getattr", 300*time.Microsecond)
		m := e2e.Mount(t, s.settings...)
		s.slow.Hang(t, s.last) // if the first batch waited for a check of all shards, it would fail
		began := time.Now()
		reads[i] = openNext(t, m.Dir)
		reads[i]()
		e2e.CheckDuration(t, fmt.Sprintf("the first batch of %d shards", n), time.Since(began), time.Second)
		s.slow.Delay(t, s.last, 0)
	}
	for i, s := range splits {
		before[i] = s.requestedLookups(t)
	}
	var ratios []float64
	for range rounds {
		var took [2]time.Duration
		for range batches { // alternate, so that other load on this machine slows both
			for i, read := range reads {
				duration := read()
				took[i], slowest[i] = took[i]+duration, max(slowest[i], duration)
			}
		}
		ratios = append(ratios, took[0].Seconds()/took[1].Seconds())
	}
	slices.Sort(ratios)
	for i, s := range splits {
		// Rounding corrects for lookups of a pass that have not arrived.
		requested[i] = int(math.Round(float64(s.requestedLookups(t)-before[i]) / (batches * rounds)))
		e2e.CheckDuration(t, fmt.Sprintf("the slowest batch of %d shards", s.n), slowest[i], time.Second)
	}
	t.Logf("rates of many shards, compared with few: %.2f; lookups of a batch: %d", ratios, requested)
	if e2e.InSoak() && ratios[rounds/2] < 0.8 || requested[0] != requested[1] {
		t.Errorf("the rate is %.2f of that of few shards, want at least 0.8; lookups per batch are %d, want equal numbers", ratios[rounds/2], requested)
	}
}

// While the check of one shard hangs, doctor, list and metrics report that, and batches of other
// shards are read as usual.
func TestHangingCheck(t *testing.T) {
	t.Parallel()
	s := newSlowShards(t, 96)
	m := e2e.Mount(t, s.settings...)
	read := openNext(t, m.Dir)
	s.slow.Hang(t, s.last)
	read() // makes the mount check the shards
	s.slow.AwaitHanging(t, s.last)
	read()
	e2e.AwaitDoctor(t, m.Dir, "train is stuck: its token files have not answered for")
	// A longer mountpoint widens the column.
	listed := regexp.MustCompile(regexp.QuoteMeta(m.Dir) + " +stuck ")
	e2e.Await(t, "list to show the split as stuck, and metrics to show a wait", func() (any, bool) {
		list, metrics := e2e.Run(t, e2e.PlainBatchfs, "list"), e2e.Run(t, "cat", m.Path("metrics"))
		return list + metrics, listed.MatchString(list) && !strings.Contains(metrics, "\nbatchfs_longest_wait_seconds 0\n")
	})
	read() // if it waited for the check, it would fail
	s.slow.Delay(t, s.last, 0)
	e2e.AwaitDoctor(t, m.Dir, "is mounted, served by process ")
}
