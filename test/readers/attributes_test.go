package readers

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// times returns the modification time of each file, keyed by path, as stat prints it.
func times(t *testing.T, m *e2e.Mounted, paths ...string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, path := range paths {
		all[path] = strings.TrimSpace(e2e.Run(t, "stat", "-c", "%.9Y", m.Path(path)))
	}
	return all
}

// The times of batches are the same in every mount with the same settings, and differ under others,
// so a program that compares sizes and times, like rsync, copies what has changed and nothing else.
func TestTimesIdentifyBatches(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	tokens := filepath.Join(filepath.Dir(config), "train.bin")
	written := time.Unix(1_700_000_000, 123_456_789)
	e2e.NoError(t, os.Chtimes(tokens, written, written))
	numbered := []string{"train/batch/0", "train/batch/1.npy", "train/batch/2.json", "train/batches.bin", "train/batches.npy"}
	mount := func(args ...string) (found map[string]string, ofMount string) {
		m := e2e.Mount(t, append([]string{"-c", config}, args...)...)
		defer m.Stop(t)
		e2e.Equal(t, "the time of tokens.bin", times(t, m, "train/tokens.bin")["train/tokens.bin"], "1700000000.123456789")
		changing := times(t, m, "train/next", "train/cursor", "status.json", "README", "train")
		for path, at := range changing {
			e2e.Equal(t, "the time of "+path, at, changing["README"])
		}
		all := times(t, m, numbered...)
		for _, path := range []string{"seed=7", "rank=1,world=2", "batch_size=3"} {
			maps.Copy(all, times(t, m, "train/"+path+"/batch/0"))
		}
		return all, changing["README"]
	}
	first, began := mount()
	seen := make(map[string]string) // paths, keyed by time
	for path, at := range first {
		settings := filepath.Dir(filepath.Dir(strings.TrimPrefix(path, "train/")))
		if other, ok := seen[at]; ok && other != settings {
			t.Errorf("batches under %q and %q have the same time %s", settings, other, at)
		}
		seen[at] = settings
		if at >= "1700000001" || at < fmt.Sprint(1_700_000_000-365*24*3600) || !strings.HasSuffix(at, ".123456789") {
			t.Errorf("the time of %s is %s, not whole seconds before that of the tokens", path, at)
		}
	}
	if len(seen) != 4 {
		t.Errorf("%d different times, want one for each of 4 settings: %v", len(seen), first)
	}
	again, beganAgain := mount("--set", "memory.access=pread", "--set", "splits.train.start=5")
	if !maps.Equal(first, again) || began == beganAgain {
		t.Errorf("another mount has the times %v, and the first had %v", again, first)
	}
	if other, _ := mount("--set", "batch.seed=8"); other["train/batch/0"] == first["train/batch/0"] {
		t.Error("another seed gives the same time")
	}
}

// df and shutil.disk_usage show the size of the token files, on a full file system.
func TestFileSystemHasTheSizeOfTheTokens(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1) // two splits of 60,000 tokens of 2 bytes
	m := e2e.Mount(t, "-c", config)
	e2e.Equal(t, "the size that df shows", strings.Fields(e2e.Run(t, "df", "-B1", "--output=size", m.Dir))[1], fmt.Sprint((2*60_000*2+4095)/4096*4096))
	e2e.Equal(t, "free blocks of statfs", e2e.Run(t, "stat", "-f", "-c", "%f %a", m.Dir), "0 0\n")
}
