package readers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// After a seek, the next reader of next takes the given batch, in that sequence only, even if the
// worker is killed or restarted.
func TestSeek(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	next := func(path string, number int) {
		t.Helper()
		e2e.Equal(t, "next of "+path, e2e.FileDigest(t, m, path+"/next"), e2e.FileDigest(t, m, fmt.Sprintf("%s/batch/%d", path, number)))
	}
	next("train", 0)
	m.Seek(t, "train", 1000, 1)
	next("train", 1000)
	next("train", 1001)
	m.Seek(t, "train", 7, 1002)
	next("train", 7)

	const rank = "train/rank=1,world=2"
	m.Seek(t, rank, 500, 0)
	m.Seek(t, "train/world=2/rank=1", 600, 500)
	next(rank, 600)
	e2e.Equal(t, "the cursors of train and val", m.Cursor(t, "train")+" "+m.Cursor(t, "val"), "8 0")

	const sized = "train/batch_size=2,rank=1,world=2"
	e2e.Run(t, e2e.PlainBatchfs, "seek", m.Path(sized), "--row", "36")
	next(sized, 9)
	e2e.CheckFails(t, "--row: must be a multiple of batch_size times world, 4, ", e2e.PlainBatchfs, "seek", m.Path(sized), "--row", "37")
	e2e.CheckFails(t, "name either the number of a batch or --row", e2e.PlainBatchfs, "seek", m.Path(sized))

	worker := m.AwaitStandby(t)[0]
	m.Seek(t, "train", 1<<40-2, 8)
	e2e.NoError(t, syscall.Kill(worker, syscall.SIGKILL))
	next("train", 1<<40-2)
	m.Seek(t, rank, 77, 601)
	e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
	e2e.CheckOutput(t, fmt.Sprintf(`"cursor": %20d`, 77), "cat", m.Path("status.json"))
	next(rank, 77)
}

func TestSeekRejected(t *testing.T) {
	t.Parallel()
	config, _ := e2e.SmallConfig(t, 1)
	m := e2e.Mount(t, "-c", config)
	for _, test := range []struct{ path, number, want string }{
		{t.TempDir(), "5", "no batchfs is mounted there"},
		{filepath.Join(t.TempDir(), "none/train"), "5", "no batchfs is mounted there"},
		{m.Dir, "5", "name a split in the mount, such as " + m.Path("train")},
		{m.Path("train/next"), "5", "is neither a split in the mount nor a settings directory"},
		{m.Path("train/rank=x"), "5", "is neither a split in the mount nor a settings directory; batchfs why " + m.Path("train/rank=x")},
		{m.Path("train"), "1099511627776", `batch number: must be a whole number from 0 to 1099511627775 (got "1099511627776")`},
		{m.Path("train"), "ten", `(got "ten")`},
	} {
		e2e.CheckFails(t, test.want, e2e.PlainBatchfs, "seek", test.path, test.number)
	}
	e2e.Equal(t, "the cursor", m.Cursor(t, "train"), "0")
	if os.Geteuid() == 0 {
		if out, err := e2e.RunAs(t, e2e.Nobody, e2e.Nobody, e2e.Batchfs, "seek", m.Path("train"), "5"); err == nil || !strings.Contains(out, "mount.allow_other") {
			t.Errorf("seek as another user: error %v, output %q, want a hint at mount.allow_other", err, out)
		}
	}
	m.Stop(t)
	e2e.CheckFails(t, "no batchfs is mounted there", e2e.PlainBatchfs, "seek", m.Path("train"), "5")
}
