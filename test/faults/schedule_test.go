package faults

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// writeSchedule writes a configuration of sources of 2,000 rows each, with further lines for each
// source, and stages.
func writeSchedule(t *testing.T, dir string, sources []string, more string, stages ...string) (config string) {
	t.Helper()
	text := "[memory]\nahead = 0\n[batch]\nbatch_size = 4\nblock_size = 16\n"
	for _, name := range sources {
		if path := filepath.Join(dir, name+".bin"); len(e2e.Must(filepath.Glob(path))(t)) == 0 {
			e2e.WriteTokens(t, path, 32_001, 2)
		}
		text += fmt.Sprintf("[[splits.train.sources]]\nname = %q\ntokens = %q\n%s\n", name, name+".bin", more)
	}
	for _, stage := range stages {
		text += "[[splits.train.stages]]\n" + stage + "\n"
	}
	return e2e.Write(t, filepath.Join(dir, "config.toml"), text)
}

// A restart that would change a row that was read is refused, whatever read it. A change of the
// next row is accepted. The mount is restarted 26 times.
func TestScheduleOfRowsRead(t *testing.T) {
	e2e.NeedRoot(t, "only root may have the kernel forget what is not in use")
	t.Parallel()
	dir, sources, half := t.TempDir(), []string{"web", "math"}, "weights = {web = 1, math = 1}"
	config := writeSchedule(t, dir, sources, "", half)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	m.AwaitStandby(t)
	refused := func(row int, wants ...string) {
		t.Helper()
		worker := m.Worker(t)
		writeSchedule(t, dir, sources, "", half, fmt.Sprintf("weights = {math = 1}\nfrom_row = %d", row))
		_, stderr, err := e2e.Try(t, e2e.PlainBatchfs, "restart", m.Dir)
		e2e.Equal(t, "the restart failed", err != nil, true)
		for _, want := range wants {
			e2e.Contains(t, "the error", stderr, want)
		}
		e2e.Equal(t, "the worker after a restart that was refused", m.Worker(t), worker)
	}
	for _, test := range []struct {
		last int    // last row of the batch, which is odd
		path string // directory of the batch
		read []string
	}{
		{3, "batch 0 of train", []string{"head", "-c1", m.Path("train/next")}},
		{51, "batch 12 of train", []string{e2e.Python, "clients/readers.py", "mmap_shared", m.Path("train/batch/12")}},
		{111, "batch 13 of train/rank=1,world=2", []string{"head", "-c1", m.Path("train/rank=1,world=2/batch/13.npy")}},
		{167, "batch 20 of train/batch_size=8", []string{"sh", "-c", `head -c1 "$0" | cat`, m.Path("train/batch_size=8/batch/20.safetensors")}},
		{403, "batch 100 of train/seed=3", []string{e2e.PlainBatchfs, "cat", m.Path("train/seed=3"), "--from", "100"}},
		{1203, "batch 300 of train/block_size=32", []string{"head", "-c1", m.Path("train/block_size=32/batch/300")}},
	} {
		e2e.Run(t, test.read...)
		// The kernel forgets everything that is not in use.
		e2e.Run(t, "mount", "-i", "-o", "remount,ro", m.Dir)
		for try := range 2 {
			if try > 0 { // the successor of the worker that served the read
				m.KillServing(t, syscall.SIGKILL)
				m.AwaitStandby(t)
			}
			where := fmt.Sprintf(", batch %d of train)", test.last/4)
			if strings.Contains(test.path, "block_size") { // rows of the split are longer
				where = ")"
			}
			refused(test.last-1, fmt.Sprintf("splits.train.stages: the new schedule changes row %d (token ", test.last-1),
				fmt.Sprintf("%s, but rows up to %d were read, the last ", where, test.last),
				" ago in "+test.path+"; change only later rows, or unmount and mount again")
		}
		next := fmt.Sprintf("weights = {math = 1}\nfrom_row = %d", test.last+1)
		writeSchedule(t, dir, sources, "", half, next)
		e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
		e2e.Equal(t, "a later batch", e2e.FileDigest(t, m, "train/seed=4,source=web/batch/1"), e2e.Digests(t, "train/seed=4,source=web", 1, 1, "-c", config)[0])
		writeSchedule(t, dir, sources, "", half)
		e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
	}
	// A pipe that computes batches itself ends once the mount has another schedule.
	pipe := e2e.Job(t, e2e.PlainBatchfs, "cat", m.Path("train/seed=9"), "--from", "1000", "--count", "0")
	out, why := e2e.Must(pipe.StdoutPipe())(t), new(strings.Builder)
	pipe.Stderr = why
	e2e.NoError(t, pipe.Start())
	e2e.Must(io.ReadFull(out, make([]byte, 256)))(t)
	refused(4000, " of train/seed=9; change only later rows")
	writeSchedule(t, dir, sources, "", half, "weights = {math = 1}\nfrom_row = 1_000_000")
	e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
	io.Copy(io.Discard, out)
	if err := pipe.Wait(); err == nil || !strings.Contains(why.String(), "batchfs restart has changed the schedule of the mount") {
		t.Errorf("a pipe after a restart: %v, %s", err, why)
	}
	for n := range 7 { // with those above, nine block sizes
		e2e.Run(t, "head", "-c1", m.Path(fmt.Sprintf("train/block_size=%d/batch/0", 40+n)))
	}
	refused(2_000_000, "its rows were read with more combinations of block_size, layout, shuffle_block and number of hosts than batchfs keeps track of")
}

// A restart that adds a source keeps the files of the others as they are mounted: it is rejected if
// one has changed, and ignores one that their globs match since then.
func TestAddedSourceKeepsFiles(t *testing.T) {
	t.Parallel()
	for _, onChange := range []string{"error", "follow"} {
		dir := t.TempDir()
		web, config := filepath.Join(dir, "web-0.bin"), filepath.Join(dir, "config.toml")
		for _, name := range []string{"web-0.bin", "math.bin"} {
			e2e.WriteTokens(t, filepath.Join(dir, name), 32_001, 2)
		}
		old, mounted := e2e.Must(os.ReadFile(web))(t), e2e.Must(os.Stat(web))(t).ModTime()
		write := func(config, tokens, more string) {
			t.Helper()
			e2e.Write(t, config, fmt.Sprintf("[batch]\nbatch_size = 4\nblock_size = 16\n[splits.train]\non_change = %q\n"+
				"[[splits.train.sources]]\nname = 'web'\ntokens = %q\n[[splits.train.stages]]\nweights = {web = 1}\n", onChange, tokens)+more)
		}
		write(config, "web-*.bin", "")
		m := e2e.Mount(t, "-c", config)
		batch := ""
		if onChange == "error" { // with follow, a read would have the mount look for changes
			batch = e2e.FileDigest(t, m, "train/batch/9")
		}
		const added = "[[splits.train.sources]]\nname = 'math'\ntokens = 'math.bin'\n[[splits.train.stages]]\nweights = {math = 1}\nfrom_row = 400\n"
		write(config, "web-*.bin", added)
		worker := m.Worker(t)
		for _, change := range []func(){
			func() { e2e.NoError(t, os.Chtimes(web, time.Time{}, mounted.Add(time.Hour))) },
			func() { e2e.ReplaceFile(t, web, append([]byte{1}, old[1:]...)) },
		} {
			change()
			e2e.CheckFails(t, web+" has changed ", e2e.PlainBatchfs, "restart", m.Dir)
			e2e.Equal(t, "the worker after a restart that was rejected", m.Worker(t), worker)
		}
		if onChange == "follow" {
			e2e.Read(t, "read", m.Path("train/next"))
			e2e.Equal(t, "changes", m.Info(t, "train").Changes, 1)
		} else {
			e2e.ReplaceFile(t, web, old)
			e2e.NoError(t, os.Chtimes(web, time.Time{}, mounted))
		}
		e2e.WriteTokens(t, filepath.Join(dir, "web-1.bin"), 32_001, 2)
		e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
		served := filepath.Join(dir, "served.toml")
		write(served, "web-0.bin", added)
		got, want := m.Info(t, "train"), e2e.JSON[e2e.Info](t, e2e.PlainBatchfs, "cat", "train", "-c", served, "--format", "info")
		e2e.Equal(t, "the fingerprint", got.Fingerprint, want.Fingerprint)
		e2e.Equal(t, "the identity", got.Identity, want.Identity)
		if onChange == "error" {
			e2e.Equal(t, "a batch of the source that was mounted", e2e.FileDigest(t, m, "train/batch/9"), batch)
		}
		e2e.Equal(t, "a batch of the added source", e2e.FileDigest(t, m, "train/batch/100"), e2e.Digests(t, "train", 100, 1, "-c", served)[0])
	}
}

// When every source has used up its max_epochs, reads fail with ENODATA. If the schedule then goes
// on, so do its readers, and a source that was added is read from its first row.
func TestEndOfSchedule(t *testing.T) {
	t.Parallel()
	dir, sources, half := t.TempDir(), []string{"web", "math"}, "weights = {web = 1, math = 1}"
	config := writeSchedule(t, dir, sources, "max_epochs = 0.01", half) // 20 rows of each source
	m := e2e.Mount(t, "-c", config)
	info := m.Info(t, "train")
	e2e.Equal(t, "steps", info.Steps, 10)
	want := e2e.Digests(t, "train", 0, 10, "-c", config)
	for k := range 10 {
		e2e.Equal(t, fmt.Sprintf("batch %d", k), e2e.Read(t, "read", m.Path("train/next"))[0], want[k])
	}
	checkSequence := func(batches int) {
		t.Helper()
		const header, batch = 4096, 256 + 8 // with the array source
		var want []byte
		all := e2e.Run(t, e2e.PlainBatchfs, "cat", "train", "-c", config, "--format", "safetensors", "--count", fmt.Sprint(batches))
		for ; len(all) > 0; all = all[header+batch:] {
			want = append(want, all[header:header+batch]...)
		}
		e2e.Equal(t, fmt.Sprintf("sequence.bin of %d batches", batches), e2e.FileDigest(t, m, "train/sequence.bin"), e2e.Digest(want))
	}
	checkSequence(10)
	const ended = "no batch is left, because every source has used up its max_epochs: raise it or add a source in the configuration, and run batchfs restart"
	for range 3 {
		for _, path := range []string{"next", "next.npy", "batch/10", "rank=1,world=2/batch/5.json"} {
			e2e.CheckFails(t, "No data available", "cat", m.Path("train/"+path))
		}
		e2e.CheckLogAndStatus(t, m, ended)
		e2e.Kill(t, m, m.AwaitWorker(t))
	}
	const end = "batch 10 of train: " + ended
	e2e.CheckFails(t, end, e2e.PlainBatchfs, "cat", "train", "-c", config, "--from", "9", "--count", "2")
	out, stderr, err := e2e.Try(t, e2e.PlainBatchfs, "cat", "train", "-c", config, "--from", "8", "--count", "0")
	if err != nil || len(out) != 2*256 || !strings.Contains(stderr, end) {
		t.Errorf("cat without a limit: %v, %d bytes, %s", err, len(out), stderr)
	}

	sources = append(sources, "code")
	writeSchedule(t, dir, sources, "max_epochs = 0.01", half, "weights = {code = 1}\nfrom_row = 30")
	e2e.CheckFails(t, "but rows up to 39 were read", e2e.PlainBatchfs, "restart", m.Dir)
	writeSchedule(t, dir, sources, "max_epochs = 0.01", half, "weights = {code = 1}\nfrom_row = 40")
	e2e.Run(t, e2e.PlainBatchfs, "restart", m.Dir)
	want = e2e.Digests(t, "train", 10, 5, "-c", config)
	for k := range 5 {
		e2e.Equal(t, fmt.Sprintf("batch %d", 10+k), e2e.Read(t, "read", m.Path("train/next"))[0], want[k])
	}
	e2e.CheckFails(t, "No data available", "cat", m.Path("train/next"))
	e2e.Equal(t, "the cursor", m.NextNumber(t, "train"), 15)
	e2e.Equal(t, "code's first row", e2e.FileDigest(t, m, "train/source=code/batch/0"), want[0])
	checkSequence(15)
	now := m.Info(t, "train")
	e2e.Equal(t, "steps, which batches.bin keeps", now.Steps, info.Steps)
	e2e.Equal(t, "the fingerprint", now.Fingerprint, e2e.JSON[e2e.Info](t, e2e.PlainBatchfs, "cat", "train", "-c", config, "--format", "info").Fingerprint)
}
