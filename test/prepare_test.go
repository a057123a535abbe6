package test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	parquetformat "github.com/parquet-go/parquet-go/format"
	"golang.org/x/sys/unix"
)

// writeLines writes about size bytes of jsonl to w, and counts the documents.
func writeLines(t testing.TB, w io.Writer, size int) (documents int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var words []string
	for range 5000 {
		word := make([]byte, 2+rng.IntN(9))
		for i := range word {
			word[i] = 'a' + byte(rng.IntN(26))
		}
		words = append(words, string(word))
	}
	for written := 0; written < size; documents++ {
		text := fmt.Appendf(nil, "%d", documents)
		for range rng.IntN(1000) {
			text = append(append(text, " \n\""[rng.IntN(3)]), words[rng.IntN(len(words))]...)
		}
		line, err := json.Marshal(map[string]string{"text": string(text)})
		noError(t, err)
		n, err := w.Write(append(line, '\n'))
		noError(t, err)
		written += n
	}
	return documents
}

// compressedLines writes a .jsonl.zst.
func compressedLines(t testing.TB, path string, size int) (documents int) {
	t.Helper()
	f, err := os.Create(path)
	noError(t, err)
	w, err := zstd.NewWriter(f, zstd.WithEncoderLevel(zstd.SpeedFastest))
	noError(t, err)
	documents = writeLines(t, w, size)
	noError(t, w.Close())
	noError(t, f.Close())
	return documents
}

// contents are the SHA-256 of all files in a directory.
func contents(t testing.TB, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	noError(t, err)
	h := sha256.New()
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		noError(t, err)
		fmt.Fprintf(h, "%s %x\n", e.Name(), sha256.Sum256(raw))
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Killed again and again at any moment, prepare makes the files that it makes at once.
func TestPrepareKilled(t *testing.T) {
	long(t)
	dir := t.TempDir()
	texts, want, out := filepath.Join(dir, "a.jsonl.zst"), filepath.Join(dir, "want"), filepath.Join(dir, "out")
	size := 8 << 20
	if inSoak() {
		size = 400 << 20
	}
	compressedLines(t, texts, size)
	args := []string{"prepare", texts, "--by", "byte", "--shard-tokens", fmt.Sprint(size / 20), "--val", "0.01", "--out"}
	began := time.Now()
	run(t, append([]string{batchfs}, append(args, want)...)...)
	took := time.Since(began)

	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(out, name))
		return err == nil
	}
	completed := 0
	for killed := 0; killed < 20 || completed == 0; {
		cmd := command(t, batchfs, append(args, out)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		noError(t, cmd.Start())
		kill := time.AfterFunc(rand.N(took), func() { cmd.Process.Kill() })
		if killed >= 20 {
			kill.Stop()
		}
		err := cmd.Wait()
		kill.Stop()
		switch {
		case err == nil:
		case cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL:
			t.Fatalf("%v: %s", err, &stderr)
		default:
			killed++
		}
		if exists("vocab.json") && !exists(".prepare/.state.json") { // complete, though it may have been killed at its very end
			os.Remove(filepath.Join(out, ".prepare"))
			if contents(t, out) != contents(t, want) {
				t.Fatal("other files than those of a run that was not killed")
			}
			noError(t, os.RemoveAll(out))
			completed++
		}
	}
	t.Logf("completed %d times", completed)
}

// A disk that is full leaves no token file, and prepare goes on when there is room.
func TestPrepareDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs is root's")
	}
	dir := t.TempDir()
	texts, want, out := filepath.Join(dir, "a.jsonl.zst"), filepath.Join(dir, "want"), filepath.Join(dir, "out")
	compressedLines(t, texts, 4<<20)
	args := []string{batchfs, "prepare", texts, "--by", "byte", "--shard-tokens", "200000", "--out"}
	run(t, append(args, want)...)
	noError(t, os.Mkdir(out, 0o755))
	if err := syscall.Mount("tmpfs", out, "tmpfs", 0, "size=3m"); err != nil {
		lack(t, "no tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(out, syscall.MNT_DETACH) })
	_, stderr, err := try(t, append(args, out)...)
	if err == nil || !strings.Contains(stderr, "no space left on device; the same command continues from what is done") {
		t.Errorf("on a full disk: %v %s", err, stderr)
	}
	if entries, _ := os.ReadDir(out); len(entries) != 1 || entries[0].Name() != ".prepare" {
		t.Errorf("it leaves %v", entries)
	}
	noError(t, syscall.Mount("tmpfs", out, "tmpfs", syscall.MS_REMOUNT, "size=64m"))
	run(t, append(args, out)...)
	if contents(t, out) != contents(t, want) {
		t.Error("other files than those of a run on a disk with room")
	}
}

// prepare works in a directory of its own, and removes only what it made.
func TestPrepareWorkplace(t *testing.T) {
	for name, c := range map[string]struct {
		make func(workplace, victim string) error
		want string // empty where prepare succeeds
	}{
		"link":         {func(w, victim string) error { return os.Symlink(victim, w) }, "is no directory"},
		"link beside":  {func(w, victim string) error { return os.Symlink(filepath.Base(victim), w) }, "is no directory"},
		"file":         {func(w, _ string) error { return os.WriteFile(w, nil, 0o644) }, "is no directory"},
		"another user": {func(w, _ string) error { return cmp.Or(os.Mkdir(w, 0o755), os.Chown(w, 65534, 65534)) }, "belongs to another user"},
		"all write":    {func(w, _ string) error { return cmp.Or(os.Mkdir(w, 0o755), os.Chmod(w, 0o777)) }, "may be written by other users"},
		"a guest": {func(w, _ string) error {
			return cmp.Or(os.MkdirAll(filepath.Join(w, "dir"), 0o755), os.WriteFile(filepath.Join(w, "notes"), nil, 0o644))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user" && os.Geteuid() != 0 {
				t.Skip("another user's directory takes root")
			}
			dir := t.TempDir()
			out, text := filepath.Join(dir, "out"), filepath.Join(dir, "text")
			workplace, victim := filepath.Join(out, ".prepare"), filepath.Join(out, "victim")
			noError(t, os.MkdirAll(victim, 0o755))
			write(t, filepath.Join(victim, "train.bin"), []byte("mine"))
			write(t, text, []byte("text"))
			noError(t, c.make(workplace, victim))
			_, stderr, err := try(t, batchfs, "prepare", text, "--by", "byte", "--val", "0", "--out", out)
			if c.want == "" {
				noError(t, err)
				for _, name := range []string{".prepare/notes", ".prepare/dir", "train.bin", "vocab.json"} {
					_, err := os.Lstat(filepath.Join(out, name))
					noError(t, err)
				}
			} else if want := "batchfs: " + workplace + ": " + c.want; err == nil || !strings.HasPrefix(stderr, want) {
				t.Errorf("%v: %s, want: %s", err, stderr, want)
			}
			if left, _ := os.ReadDir(out); c.want != "" && len(left) != 2 {
				t.Errorf("it leaves %v", left)
			}
			if mine, _ := os.ReadFile(filepath.Join(victim, "train.bin")); string(mine) != "mine" {
				t.Errorf("the victim has %q", mine)
			}
		})
	}
}

// What is read once has another text each time: prepare takes up no run of it, not even one that could only not be published.
func TestPrepareReadOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting is root's")
	}
	dir := t.TempDir()
	out, fifo := filepath.Join(dir, "out"), filepath.Join(dir, "fifo")
	busy := filepath.Join(out, "train.bin")
	noError(t, os.Mkdir(out, 0o755))
	noError(t, syscall.Mkfifo(fifo, 0o600))
	for input, script := range map[string]string{"-": `printf "$0" | exec "$@"`, fifo: `printf "$0" >"$3" & exec "$@"`} {
		prepare := []string{batchfs, "prepare", input, "--by", "byte", "--val", "0", "--force", "--out", out}
		write(t, busy, nil)
		if err := syscall.Mount("/dev/null", busy, "", syscall.MS_BIND, ""); err != nil {
			lack(t, "no bind mount: %v", err)
		}
		t.Cleanup(func() { syscall.Unmount(busy, syscall.MNT_DETACH) })
		_, stderr, err := try(t, append([]string{"sh", "-c", script, "first"}, prepare...)...)
		if err == nil || !strings.HasSuffix(stderr, "device or resource busy\n") {
			t.Errorf("%s, where train.bin is mounted on: %v %s", input, err, stderr)
		}
		noError(t, syscall.Unmount(busy, 0))
		run(t, append([]string{"sh", "-c", script, "second"}, prepare...)...)
		if got, _ := os.ReadFile(busy); string(got) != "s\x00e\x00c\x00o\x00n\x00d\x00" {
			t.Errorf("%s: tokens %q", input, got)
		}
	}
}

// Whatever an input waits for, prepare ends at the first signal, and at once when something else fails.
func TestPrepareIdle(t *testing.T) {
	for name, c := range map[string]struct {
		stdin string // before it is idle
		args  string
		sig   os.Signal // nil where prepare fails
		want  string
	}{
		"Ctrl-C":             {"some text", "-", syscall.SIGINT, "batchfs: interrupted\n"},
		"SIGTERM":            {"some text", "-", syscall.SIGTERM, "batchfs: interrupted\n"},
		"nobody writes":      {"", "fifo", syscall.SIGTERM, "batchfs: interrupted\n"},
		"text that is wrong": {strings.Repeat("no JSON\n", 1<<17), "- --as jsonl", nil, "batchfs: -: line 1: is no JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			noError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
			r, w, err := os.Pipe()
			noError(t, err)
			defer w.Close()
			cmd := exec.Command(batchfs, append([]string{"prepare", "--by", "byte", "--val", "0", "--out", "out"}, strings.Fields(c.args)...)...)
			var stderr strings.Builder
			cmd.Dir, cmd.Stdin, cmd.Stderr = dir, r, &stderr
			noError(t, cmd.Start())
			noError(t, r.Close())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			io.WriteString(w, c.stdin) // an error, if it has ended before
			if c.sig != nil {
				await(t, "that it has read the text", func() bool {
					_, err := os.Stat(filepath.Join(dir, "out", ".prepare"))
					left, ioctl := unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ)
					return err == nil && ioctl == nil && left == 0
				})
				noError(t, cmd.Process.Signal(c.sig))
			}
			select {
			case <-ended:
			case <-time.After(limit):
				cmd.Process.Kill()
				t.Fatal("does not end")
			}
			if cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(stderr.String(), c.want) {
				t.Errorf("%v: %s", cmd.ProcessState, &stderr)
			}
			if left, err := os.ReadDir(filepath.Join(dir, "out")); err != nil || len(left) > 0 {
				t.Errorf("it leaves %v, %v", left, err)
			}
		})
	}
}

// However much text there is, prepare needs the same memory.
func TestPrepareMemory(t *testing.T) {
	long(t)
	dir := t.TempDir()
	texts := filepath.Join(dir, "a.jsonl.zst")
	size := 64 << 20
	if inSoak() {
		size = 2 << 30
	}
	compressedLines(t, texts, size)
	most, out, err := mostResident(t, "prepare", texts, "--by", "byte", "--out", filepath.Join(dir, "out"))
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%d MiB resident at most", most)
	if most > 500 {
		t.Errorf("%d MiB resident", most)
	}
}

// mostResident runs a command, and returns how many MiB it had resident at most, and what it said.
func mostResident(t testing.TB, args ...string) (most int, said string, err error) {
	t.Helper()
	cmd := command(t, plainBatchfs, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	noError(t, cmd.Start())
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	// Not the maximum that wait(2) tells: it begins with that of this process, which may be large.
	for {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if _, rest, ok := strings.Cut(string(status), "VmHWM:"); ok {
			var kib int
			fmt.Sscan(rest, &kib)
			most = max(most, kib>>10)
		}
		select {
		case err := <-ended:
			return most, out.String(), err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A page of parquet that has a GiB is refused before it is in memory, whether its header says so or not.
func TestPrepareHugePage(t *testing.T) {
	var page bytes.Buffer
	w, err := zstd.NewWriter(&page)
	noError(t, err)
	value := append(binary.LittleEndian.AppendUint32(nil, 1<<20-4), bytes.Repeat([]byte("x"), 1<<20-4)...) // a length, and a text
	const values = 1024
	for range values {
		_, err := w.Write(value)
		noError(t, err)
	}
	noError(t, w.Close())
	for said, want := range map[int32]string{
		values << 20: "column text has a page of 1073741824 bytes and 1024 values, and memory holds 268435456 bytes and 33554432 values at most: write the file with smaller",
		100_000_000:  "column text has a page of more bytes than the 100000000 that its header says",
	} {
		header := parquetformat.PageHeader{Type: parquetformat.DataPage, UncompressedPageSize: said, CompressedPageSize: int32(page.Len()),
			DataPageHeader: thrift.Null[parquetformat.DataPageHeader]{Valid: true, V: parquetformat.DataPageHeader{NumValues: values}}}
		rawHeader, err := thrift.Marshal(new(thrift.CompactProtocol), header)
		noError(t, err)
		// All but the page is that of a small file.
		type row struct {
			Text string `parquet:"text,plain,zstd"`
		}
		var small bytes.Buffer
		rows := parquet.NewGenericWriter[row](&small)
		_, err = rows.Write(make([]row, values))
		noError(t, err)
		noError(t, rows.Close())
		f, err := parquet.OpenFile(bytes.NewReader(small.Bytes()), int64(small.Len()))
		noError(t, err)
		meta := f.Metadata()
		column := &meta.RowGroups[0].Columns[0].MetaData
		column.DataPageOffset, column.DictionaryPageOffset, column.TotalCompressedSize = 4, 0, int64(len(rawHeader)+page.Len())
		footer, err := thrift.Marshal(new(thrift.CompactProtocol), *meta)
		noError(t, err)
		path := filepath.Join(t.TempDir(), "a.parquet")
		write(t, path, slices.Concat([]byte("PAR1"), rawHeader, page.Bytes(), footer, binary.LittleEndian.AppendUint32(nil, uint32(len(footer))), []byte("PAR1")))
		most, out, err := mostResident(t, "prepare", path, "--by", "byte", "--out", filepath.Join(t.TempDir(), "out"))
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%v: %s", err, out)
		}
		if most > 200 {
			t.Errorf("a header of %d bytes: %d MiB resident", said, most)
		}
	}
}

// Small files without number are a split, each of them a document.
func TestPrepareManyFiles(t *testing.T) {
	long(t)
	n := 3000
	if inSoak() {
		n = 100_000
	}
	dir := t.TempDir()
	for i := range n {
		if i%1000 == 0 {
			noError(t, os.MkdirAll(filepath.Join(dir, "texts", fmt.Sprint(i/1000)), 0o755))
		}
		noError(t, os.WriteFile(filepath.Join(dir, "texts", fmt.Sprint(i/1000), fmt.Sprint(i)), fmt.Appendf(nil, "text %d\n", i), 0o644))
	}
	run(t, batchfs, "prepare", filepath.Join(dir, "texts"), "--by", "byte", "--out", filepath.Join(dir, "out"))
	raw, err := os.ReadFile(filepath.Join(dir, "out", "vocab.json"))
	noError(t, err)
	var m struct {
		Splits map[string]struct{ Documents int }
	}
	noError(t, json.Unmarshal(raw, &m))
	if got := m.Splits["train"].Documents + m.Splits["val"].Documents; got != n {
		t.Errorf("%d documents of %d files", got, n)
	}
}
