package readers

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// buildCounted builds the program with testdata/countedsync.txt in place of package sync.
func buildCounted(t *testing.T) (program string) {
	t.Helper()
	dir := t.TempDir()
	root := e2e.Must(filepath.Abs(".."))(t)
	replace := map[string]string{filepath.Join(root, "internal/countedsync/sync.go"): filepath.Join(root, "test/readers/testdata/countedsync.txt")}
	files := e2e.Run(t, "grep", "-rl", "--include=*.go", "--exclude=*_test.go", "--exclude-dir=test", `^	"sync"$`, root)
	for path := range strings.FieldsSeq(files) {
		source := strings.Replace(string(e2e.Content(t, path)), "\t\"sync\"\n", "\tsync \"batchfs/internal/countedsync\"\n", 1)
		replace[path] = e2e.Write(t, filepath.Join(dir, strings.ReplaceAll(path, "/", "_")), source)
	}
	overlay := e2e.Write(t, filepath.Join(dir, "overlay.json"), e2e.Must(json.Marshal(map[string]any{"Replace": replace}))(t))
	program = filepath.Join(dir, "batchfs")
	e2e.RunJob(t, "go", "build", "-overlay", overlay, "-o", program, "../cmd/batchfs")
	return program
}

// A warm READ of next takes few locks before its reply is sent. Afterwards, Done takes some to
// prefetch, and no reader waits for them. During the pause, the next batch is prefetched. Locks
// that other goroutines take are counted too.
func TestLocksOfARead(t *testing.T) {
	e2e.SkipIfShort(t)              // it builds the program
	const most, background = 7, 0.5 // locks of a READ, and of other goroutines during it
	program := buildCounted(t)
	config, _ := e2e.SmallConfig(t, 1)
	for _, test := range []struct {
		ahead string
		reads int
		pause time.Duration
	}{{"0", 10_000, 0}, {"2", 2000, time.Millisecond}} {
		t.Run("ahead="+test.ahead, func(t *testing.T) {
			counts := e2e.Write(t, filepath.Join(t.TempDir(), "locks"), make([]byte, 16))
			cmd := exec.Command(program)
			cmd.Env = append(os.Environ(), "BATCHFS_LOCKS="+counts)
			m := e2e.MountProgram(t, cmd, "-c", config, "--set", "memory.ahead="+test.ahead)
			next := e2e.Must(os.Open(m.Path("train/next")))(t)
			defer next.Close()
			buf := make([]byte, e2e.Must(next.Stat())(t).Size())
			var locks [2]float64 // per READ: until its reply is sent, and afterwards
			for round := range 2 {
				for range test.reads {
					e2e.Must(next.ReadAt(buf, 0))(t)
					time.Sleep(test.pause)
				}
				for i := range locks {
					total := binary.NativeEndian.Uint64(e2e.Content(t, counts)[8*i:])
					locks[i] = float64(total)/float64(test.reads) - locks[i]*float64(round)
				}
			}
			t.Logf("a READ takes %.2f locks until its reply is sent, and then %.2f", locks[0], locks[1])
			if locks[0] > most+background || locks[0] < 1 {
				t.Errorf("a READ takes %.2f locks until its reply is sent, want at most %d", locks[0], most)
			}
		})
	}
}
