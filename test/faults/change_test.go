package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"batchfs/internal/wait"
	"batchfs/test/e2e"
)

// readers is a running clients/readers.py changing.
type readers struct {
	ways  []string
	in    io.WriteCloser
	done  chan error
	round int

	mu    sync.Mutex
	lines []reading // guarded by mu
	ended bool      // guarded by mu
}

// A reading is what a reader printed of one read, a line of what it got or an error, and the round in which it began.
type reading struct {
	round int
	way   string
	got   string
}

// startReaders starts to read files of a directory, each in one of the ways of clients/readers.py.
func startReaders(t *testing.T, dir string, ways ...string) *readers {
	t.Helper()
	c := e2e.StartClient(t, exec.Command(e2e.Python, append([]string{"clients/readers.py", "changing", dir}, ways...)...))
	r := &readers{ways: ways, in: c.In, done: make(chan error, 1), round: 1}
	go func() {
		for out := bufio.NewScanner(c.Out); out.Scan(); {
			var l reading
			round, rest, _ := strings.Cut(out.Text(), " ")
			fmt.Sscan(round, &l.round)
			l.way, l.got, _ = strings.Cut(rest, " ")
			r.mu.Lock()
			r.lines = append(r.lines, l)
			r.mu.Unlock()
		}
		err := c.Cmd.Wait()
		r.mu.Lock()
		r.ended = true
		r.mu.Unlock()
		r.done <- err
	}()
	return r
}

// next begins a round.
func (r *readers) next(t *testing.T, kind string) {
	t.Helper()
	r.round++
	e2e.Must(fmt.Fprintln(r.in, kind))(t)
}

// wait returns when each way has been read n times in the current round.
func (r *readers) wait(t *testing.T, n int) {
	t.Helper()
	r.await(t, n, 0, r.round)
}

// more returns when each way has been read n times more.
func (r *readers) more(t *testing.T, n int) {
	t.Helper()
	r.mu.Lock()
	from := len(r.lines)
	r.mu.Unlock()
	r.await(t, n, from, r.round)
}

// await returns when there are n lines of each way, in a round, from a line on.
func (r *readers) await(t *testing.T, n, from, round int) {
	t.Helper()
	seen := map[string]int{}
	e2e.Await(t, fmt.Sprintf("%d reads of each kind in round %d", n, round), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for ; from < len(r.lines); from++ {
			if l := r.lines[from]; l.round == round {
				seen[l.way]++
			}
		}
		missing := slices.ContainsFunc(r.ways, func(way string) bool { return seen[way] < n })
		if missing && r.ended {
			t.Fatalf("the readers ended after %v in round %d", seen, round)
		}
		return !missing
	})
}

// finish ends the readers and returns all that they read.
func (r *readers) finish(t *testing.T) []reading {
	t.Helper()
	r.in.Close()
	e2e.NoError(t, wait.For(t, "the end of the readers", r.done))
	return r.lines
}

// A catalogue has the versions and the number of each batch, by what the readers print for that batch.
type catalogue map[string]*catalogued

type catalogued struct {
	versions []string
	k        int
}

// add adds the first n batches that `batchfs cat` gives, as of a version of the tokens.
func (c catalogue) add(t *testing.T, version string, n int, args ...string) {
	t.Helper()
	all := e2e.Cat(t, append(args, "--count", fmt.Sprint(n))...)
	size := len(all) / n
	for k := range n {
		l := e2e.Line(all[k*size:][:size])
		if c[l] == nil {
			c[l] = &catalogued{k: k}
		}
		c[l].versions = append(c[l].versions, version)
	}
}

// judge fails unless each reading is a batch of a version that it may be of, or the error that it may be (or EFAULT in its
// place, of what is mapped), and no number of the next* of a directory went to two reads. It returns how many batches of each
// version, and errors, there were in each way.
func (c catalogue) judge(
	t *testing.T, lines []reading, may func(reading) (versions []string, errno string),
) (seen map[string]map[string]int) {
	t.Helper()
	seen, taken := map[string]map[string]int{}, map[string]reading{}
	for _, l := range lines {
		if seen[l.way] == nil {
			seen[l.way] = map[string]int{}
		}
		versions, errno := may(l)
		b, ok := c[l.got]
		switch {
		case l.got == "paused":
		case ok && slices.ContainsFunc(b.versions, func(v string) bool { return slices.Contains(versions, v) }):
			for _, v := range b.versions {
				seen[l.way][v]++
			}
			_, file, _ := strings.Cut(l.way, ":")
			dir, file := filepath.Split(file)
			if !strings.HasPrefix(file, "next") {
				continue
			}
			number := fmt.Sprint(dir, b.k)
			if other, twice := taken[number]; twice {
				t.Errorf("number %s went to %+v and to %+v", number, other, l)
			}
			taken[number] = l
		case errno != "" && (l.got == "errno "+errno || l.got == "errno EFAULT" && strings.HasPrefix(l.way, "maps:")):
			seen[l.way][errno]++
		default:
			t.Fatalf("%+v is %+v; it may be of versions %q, or %q", l, b, versions, errno)
		}
	}
	return seen
}

var changes = []struct {
	name   string
	change func(t *testing.T, path string)
	how    string // as the log says it
}{
	{"replaced", func(t *testing.T, path string) {
		e2e.Write(t, path+".new", e2e.VersionOf(1, changeTokens))
		e2e.NoError(t, os.Link(path, path+".old"))
		e2e.NoError(t, os.Rename(path+".new", path))
	}, "another file stands in its place"},
	// In one write and within a page, or else the file has other sizes meanwhile.
	{"appended", func(t *testing.T, path string) {
		f := e2e.Must(os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0))(t)
		e2e.Must(f.Write(e2e.VersionOf(1, 1000)))(t)
		e2e.NoError(t, f.Close())
	}, "402000 bytes, was 400000"},
	{"truncated", func(t *testing.T, path string) { e2e.NoError(t, os.Truncate(path, 300_000)) }, "300000 bytes, was 400000"},
	{"touched", func(t *testing.T, path string) {
		now := time.Now()
		e2e.NoError(t, os.Chtimes(path, now, now))
	}, "written to at "},
	{"overwritten", func(t *testing.T, path string) {
		f := e2e.Must(os.OpenFile(path, os.O_WRONLY, 0))(t)
		e2e.Must(f.Write(e2e.VersionOf(1, changeTokens)))(t)
		e2e.NoError(t, f.Close())
	}, "written to at "},
}

const changeTokens = 200_000

// A directory under other settings, and these settings. Its seed is another one, because a rank and its split share rows.
const other = "train/rank=1,seed=7,world=2"

var otherSettings = []string{"--set", "batch.rank=1", "--set", "batch.world=2", "--set", "batch.seed=7"}

// fingerprintOf returns the fingerprint of the split train of a directory.
func fingerprintOf(t *testing.T, dir string) string {
	t.Helper()
	return e2e.JSON[e2e.Info](t, e2e.PlainBatchfs, "inspect", "train", "0", "--json", "--data", dir).Fingerprint
}

// Whatever happens to a token file whose changes are followed, under whatever reader: a batch is all of the old tokens or all of the new, or ESTALE.
func TestTokensChangeUnderReaders(t *testing.T) {
	ways := []string{
		"opens:train/next", "keeps:train/next", "frames:train/next.npy", "numbered:train/batch", "preads:train/batches.bin",
		"maps:train/batches.npy", "opens:" + other + "/next", "numbered:train/world=2,rank=1,seed=7/batch",
		"preads:" + other + "/batches.bin",
	}
	const undisturbed = "keeps:val/next"
	for n, change := range changes {
		access := []string{"remap", "advise", "pread"}[n%3]
		t.Run(change.name+","+access, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			file := at("live/train.bin")
			e2e.Write(t, file, e2e.VersionOf(0, changeTokens))
			e2e.Write(t, at("old/train.bin"), e2e.VersionOf(0, changeTokens))
			e2e.Write(t, at("live/val.bin"), e2e.VersionOf(2, 10_000))
			settings := []string{"--set", "batch.batch_size=4", "--set", "batch.block_size=32"}
			m := e2e.Mount(t, append(settings, "--data", at("live"), "--set", "memory.access="+access,
				"--set", "splits.train.on_change=follow")...)

			r := startReaders(t, m.Dir, append(ways, undisturbed)...)
			r.wait(t, 5)
			if change.name == "overwritten" {
				r.next(t, "pause") // while it is written, the file itself is a mix
				r.wait(t, 1)
			}
			change.change(t, file)
			r.next(t, "go")
			r.wait(t, 20)
			changed := r.round
			now := e2e.Content(t, file)
			e2e.Write(t, at("new/train.bin"), now)
			info, log := m.Info(t, "train"), m.Out.String()
			if change.name == "replaced" {
				r.next(t, "pause")
				r.wait(t, 1)
				e2e.NoError(t, os.Rename(file+".old", file))
				r.next(t, "go")
				r.wait(t, 20)
			}
			lines := r.finish(t)

			known := catalogue{}
			for path, rank := range map[string][]string{"train": {}, other: otherSettings} {
				n := max(m.Taken(t, path), 2000) // more than there are in batches.*
				for _, v := range []string{"old", "new"} {
					known.add(t, v, n, slices.Concat([]string{"train", "--data", at(v)}, settings, rank)...)
				}
			}
			n := m.Taken(t, "val")
			known.add(t, "val", n, slices.Concat([]string{"val", "--data", at("live")}, settings)...)
			seen := known.judge(t, lines, func(l reading) (versions []string, errno string) {
				oneRequest := strings.HasPrefix(l.way, "opens:") || strings.HasPrefix(l.way, "keeps:")
				switch {
				case l.way == undisturbed:
					return []string{"val"}, ""
				case l.round < changed && oneRequest: // goes on with the new tokens by itself
					return []string{"old", "new"}, ""
				case l.round < changed:
					return []string{"old", "new"}, "ESTALE"
				case l.round > changed:
					return []string{"old"}, ""
				}
				return []string{"new"}, ""
			})
			t.Logf("%d reads: %v", len(lines), seen)

			noticed := strings.Count(log, "token files changed: the new ones are served")
			if info.Changes != noticed || noticed == 0 || change.name == "replaced" && noticed != 1 {
				t.Errorf("info.json counts %d changes, the log %d:\n%s", info.Changes, noticed, log)
			}
			if want := fingerprintOf(t, at("new")); info.Fingerprint != want || info.Tokens != len(now)/2 {
				t.Errorf("info.json has fingerprint %s of %d tokens, want %s of %d", info.Fingerprint, info.Tokens, want, len(now)/2)
			}
		})
	}
}

// After a change, every way to open a file shows the new data at once, however much of the old the kernel has; and what
// was opened before shows nothing but the old data, however many changes there have been.
func TestOpenedBeforeAndAfterAChange(t *testing.T) {
	t.Parallel()
	const size = 512
	long, short := e2e.VersionOf(0, 1_600_000), e2e.VersionOf(1, 100_000)
	m, file, settings := e2e.MountFollowing(t, long)
	var lines [2][]string // of the batches of each version
	var wholes [2]string
	for v, data := range [][]byte{long, short} {
		dir := t.TempDir()
		e2e.Write(t, filepath.Join(dir, "train.bin"), data)
		args := slices.Concat([]string{"train", "--data", dir}, settings)
		steps := ((len(data)/2-1)/32 + 3) / 4
		all := e2e.Cat(t, append(args, "--count", fmt.Sprint(steps))...)
		for k := range steps {
			lines[v] = append(lines[v], e2e.Line(all[k*size:][:size]))
		}
		wholes[v] = e2e.Line(all)
	}
	again := e2e.StartHandles(t, m.Dir)
	opened := 0
	settled := func(v, changes int) {
		t.Helper()
		for range 2 { // from the daemon, and then from the kernel
			for name, want := range map[string]string{
				"batch/0": lines[v][0], "batch/3": lines[v][3], "batch/17.npy": lines[v][17], "batch/19.safetensors": lines[v][19],
				"batches.bin": wholes[v], "batches.npy": wholes[v],
			} {
				info := e2e.Must(os.Stat(m.Path("train/" + name)))(t)
				again.Do("open train/%s", name)
				off := int64(0)
				if strings.HasSuffix(name, ".npy") || strings.HasSuffix(name, ".safetensors") {
					off = 4096
				}
				for _, how := range []string{"read", "map"} {
					e2e.Equal(t, fmt.Sprintf("after %d changes, %s of %s", changes, how, name), again.Do("%s %d %d %d", how, opened, off, info.Size()-off), want)
				}
				opened++
			}
			got := m.Info(t, "train")
			if got.Changes != changes || got.Steps != len(lines[v]) {
				t.Errorf("after %d changes info.json has %+v", changes, got)
			}
			e2e.Says(t, got.Fingerprint, "cat", m.Path("train/batch/3.json"))
		}
	}
	settled(0, 0)
	descriptors := len(e2e.FDs(t, m.Worker(t)))
	h := e2e.StartHandles(t, m.Dir)
	const batch3, batches, npy, far, farNPY, next = 0, 1, 2, 3, 4, 5
	for _, name := range []string{
		"batch/3", "batches.bin", "batches.npy", "rank=1,world=2/batches.bin", "rank=1,world=2/batches.npy", "next",
	} {
		h.Do("open train/%s", name)
	}
	for k := range 5 {
		if got := h.Do("read %d 0 %d", next, size); got != lines[0][k] {
			t.Fatalf("number %d is %s, want %s", k, got, lines[0][k])
		}
	}
	h.Do("map %d 0 %d", farNPY, size)
	end := len(lines[0]) / 2 * size // of batches.* of one of two ranks; as the kernel has not read them
	for changes := 1; changes <= 20; changes++ {
		v := changes % 2
		e2e.ReplaceFile(t, file, [][]byte{long, short}[v])
		if changes < 3 || changes == 8 || changes == 20 {
			settled(v, changes)
		}
		e2e.Equal(t, fmt.Sprintf("after %d changes, number %d", changes, 4+changes), h.Do("read %d 0 %d", next, size), lines[v][4+changes])
		for what, want := range map[string]string{
			fmt.Sprintf("read %d 0 %d", batch3, size):                lines[0][3],
			fmt.Sprintf("read %d %d %d", batches, 3*size, size):      lines[0][3],
			fmt.Sprintf("map %d %d %d", npy, 4096+3*size, size):      lines[0][3],
			fmt.Sprintf("read %d %d %d", far, end-size, size):        "",
			fmt.Sprintf("map %d %d %d", farNPY, end+4096-size, size): "",
		} {
			got := h.Do("%s", what)
			stale := got == "errno ESTALE" || got == "errno EFAULT" && strings.HasPrefix(what, "map")
			// Inodes of batch/ come round again after 8 changes, upon which the kernel gives up the old one.
			stale = stale || got == "errno EIO" && changes >= 8 && what == fmt.Sprintf("read %d 0 %d", batch3, size)
			if got != want && !stale {
				t.Errorf("%d changes after it was opened, %s: %s, want %s or ESTALE", changes, what, got, want)
			}
		}
	}
	// The next garbage collections close what the replaced tokens had.
	e2e.Await(t, "few open files", func() bool { return len(e2e.FDs(t, m.Worker(t))) <= descriptors+20 })
}

// Data that cannot be served is an error in words, and is followed as soon as it can.
func TestFollowingWhatCannotBeServed(t *testing.T) {
	good := e2e.VersionOf(1, 60_000)
	m, file, settings := e2e.MountFollowing(t, e2e.VersionOf(0, 50_000))
	h := e2e.StartHandles(t, m.Dir)
	h.Do("open train/next")
	h.Do("read 0 0 512")
	for _, bad := range []struct {
		data []byte
		want string
	}{
		{nil, "is empty"},
		{good[:50_001], "50001 bytes are not a whole number of tokens of 2 bytes"},
		{good[:64], "32 tokens, need at least block_size+1 = 33"},
	} {
		e2e.ReplaceFile(t, file, bad.data)
		for range 2 {
			for _, name := range []string{"next", "next.npy", "batch/3", "batches.npy", "rank=1,world=2/next"} {
				e2e.Fails(t, "Stale file handle", "cat", m.Path("train/"+name))
			}
			e2e.Equal(t, fmt.Sprintf("an open next of a file that %s", bad.want), h.Do("read 0 0 512"), "errno ESTALE")
		}
		e2e.LogAndStatusSay(t, m, "what is there now cannot be served: splits.train: ", bad.want)
		if got := m.Info(t, "train"); got.Changes != 0 || got.Tokens != 50_000 {
			t.Errorf("info.json has %+v, want that of the tokens that were served", got)
		}
	}
	e2e.ReplaceFile(t, file, good)
	all := e2e.Cat(t, slices.Concat([]string{"train", "--data", filepath.Dir(file), "--count", "4"}, settings)...)
	for k, got := range []string{
		1: h.Do("read 0 0 512"), 2: e2e.Read(t, "read", m.Path("train/next"))[0], 3: e2e.Read(t, "npload", m.Path("train/batch/3.npy"))[0],
	} {
		if k > 0 && got != e2e.Line(all[k*512:][:512]) {
			t.Errorf("good again, batch %d is %s", k, got)
		}
	}
	if got := m.Info(t, "train"); got.Changes != 1 || got.Tokens != 60_000 {
		t.Errorf("info.json has %+v", got)
	}
}

// A change of one of 65 files is an error of opening a batch of that file at once, and then one of the split, also
// to who reads only what lies in the others.
func TestOneOfSeveralFilesChanges(t *testing.T) {
	for _, onChange := range []string{"error", "follow"} {
		t.Run(onChange, func(t *testing.T) {
			dir := t.TempDir()
			for i := range 65 {
				e2e.Write(t, filepath.Join(dir, fmt.Sprintf("train%02d.bin", i)), e2e.VersionOf(i%3, 20_000))
			}
			settings := []string{
				"--data", dir, "--set", "batch.batch_size=4", "--set", "batch.block_size=32", "--set", "batch.order=sequential",
			}
			m := e2e.Mount(t, append(settings, "--set", "splits.train.on_change="+onChange)...)
			h := e2e.StartHandles(t, m.Dir)
			h.Do("open train/next")
			h.Do("read 0 0 512")
			const third = 400 // a batch of the third file
			before := map[int]string{}
			for _, k := range []int{0, 1, third} {
				before[k] = e2e.Read(t, "read", m.Path(fmt.Sprint("train/batch/", k)))[0]
			}
			changed := filepath.Join(dir, "train02.bin")
			e2e.NoError(t, os.Link(changed, changed+".old"))
			e2e.ReplaceFile(t, changed, e2e.VersionOf(3, 20_000))
			all := e2e.Cat(t, slices.Concat([]string{"train", "--count", fmt.Sprint(third + 1)}, settings)...)
			f, err := os.Open(m.Path(fmt.Sprint("train/batch/", third)))
			if f.Close(); onChange == "error" && !errors.Is(err, syscall.ESTALE) || onChange == "follow" && err != nil {
				t.Errorf("to open a batch of the changed file: %v", err)
			}
			for _, k := range []int{0, 1, 2, third} {
				out, stderr, err := e2e.Try(t, "cat", m.Path(fmt.Sprint("train/batch/", k)))
				switch {
				case onChange == "error":
					if err == nil || !strings.Contains(stderr, "Stale file handle") {
						t.Errorf("batch %d: %v %s, want ESTALE", k, err, stderr)
					}
				case err != nil || out != string(all[k*512:][:512]):
					t.Errorf("batch %d is not that of the new tokens: %v %s", k, err, stderr)
				}
			}
			if onChange == "follow" {
				if got := m.Info(t, "train"); got.Changes != 1 {
					t.Errorf("info.json has %+v", got)
				}
				return
			}
			e2e.Equal(t, "next, all of whose rows are in another file", h.Do("read 0 0 512"), "errno ESTALE")
			e2e.NoError(t, os.Rename(changed+".old", changed))
			for _, k := range []int{0, 1, third} {
				e2e.Equal(t, fmt.Sprintf("put back, batch %d", k), e2e.Read(t, "read", m.Path(fmt.Sprint("train/batch/", k)))[0], before[k])
			}
			e2e.Equal(t, "put back, next goes on with", h.Do("read 0 0 512"), before[1])
		})
	}
}

// A run that says which data it began with resumes with no other.
func TestExpectedFingerprint(t *testing.T) {
	e2e.NeedFUSE(t)
	dir, mountpoint := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "train.bin")
	e2e.ReplaceFile(t, file, e2e.VersionOf(1, 20_000))
	bad := fingerprintOf(t, dir)
	e2e.ReplaceFile(t, file, e2e.VersionOf(0, 20_000))
	right := fingerprintOf(t, dir)
	if right == bad {
		t.Fatal("other tokens have the same fingerprint")
	}
	args := []string{"--data", dir, "--set", "splits.train.expect_fingerprint=" + right}
	e2e.ReplaceFile(t, file, e2e.VersionOf(1, 20_000))
	for _, background := range [][]string{nil, {"-d", "--log", filepath.Join(t.TempDir(), "log")}} {
		_, stderr, err := e2e.Try(t, slices.Concat([]string{e2e.Batchfs, "mount"}, background, args, []string{mountpoint})...)
		if err == nil || !strings.Contains(stderr, "expect_fingerprint is "+right) || !strings.Contains(stderr, bad) {
			t.Errorf("mounting other data: %v %q, want both %s and %s", err, stderr, right, bad)
		}
		if e2e.IsMounted(t, mountpoint) {
			t.Error("mounted")
			e2e.Run(t, e2e.Batchfs, "unmount", mountpoint)
		}
	}
	e2e.ReplaceFile(t, file, e2e.VersionOf(0, 20_000))
	m := e2e.Mount(t, append(args, "--set", "splits.train.on_change=follow")...)
	want := e2e.Read(t, "read", m.Path("train/batch/3"))[0]
	for range 2 {
		e2e.ReplaceFile(t, file, e2e.VersionOf(1, 20_000))
		for _, name := range []string{"next", "batch/3"} {
			e2e.Fails(t, "Stale file handle", "cat", m.Path("train/"+name))
		}
		e2e.LogAndStatusSay(t, m, "expect_fingerprint is "+right, bad)
		// The same tokens in another file are the same data.
		e2e.ReplaceFile(t, file, e2e.VersionOf(0, 20_000))
		e2e.Equal(t, "with the data back, batch/3", e2e.Read(t, "read", m.Path("train/batch/3"))[0], want)
	}
}

// A mount in the background, which has left the directory that its paths are relative to, finds the new files too.
func TestFollowingInTheBackground(t *testing.T) {
	e2e.NeedFUSE(t)
	for name, args := range map[string][]string{"data": {"--data", "data"}, "config": {"-c", "config.toml"}} {
		t.Run(name, func(t *testing.T) {
			dir, mountpoint := t.TempDir(), t.TempDir()
			file := e2e.Write(t, filepath.Join(dir, "data", "train.bin"), e2e.VersionOf(0, 20_000))
			e2e.Write(t, filepath.Join(dir, "config.toml"), []byte("[splits.train]\ntokens = \"data/train*.bin\"\n"))
			mount := e2e.Command(t, e2e.Batchfs, slices.Concat([]string{"mount", "-d", "--log", filepath.Join(dir, "log")}, args,
				[]string{"--set", "splits.train.on_change=follow", mountpoint})...)
			mount.Dir = dir
			t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
			if out, err := mount.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			e2e.ReplaceFile(t, file, e2e.VersionOf(1, 30_000))
			want := e2e.Line(e2e.Cat(t, "train", "--data", filepath.Dir(file)))
			// NumPy reads the header first, and no other reader has noticed the change.
			e2e.Equal(t, "next.npy", e2e.Read(t, "npload", filepath.Join(mountpoint, "train/next.npy"))[0], want)
			e2e.Run(t, e2e.Batchfs, "unmount", mountpoint)
		})
	}
}
