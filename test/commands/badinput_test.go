package commands

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"batchfs/test/e2e"
)

// A refusal is one line that names something of its own, not a trace.
var (
	refusal = regexp.MustCompile(`\Abatchfs: [^\n]*\n\z`)
	trace   = regexp.MustCompile(`(?m)^(goroutine \d|panic:|fatal error:|runtime error|SIG[A-Z]+)`)
)

// runBad runs the program on input that may be bad, and returns the first bytes of what it writes. It must succeed or say
// in a line why not.
func runBad(t *testing.T, args ...string) (out []byte, ok bool) {
	t.Helper()
	cmd := e2e.Command(t, e2e.PlainBatchfs, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	e2e.NoError(t, err)
	e2e.NoError(t, cmd.Start())
	out, _ = io.ReadAll(io.LimitReader(pipe, 1<<16))
	if len(out) == 1<<16 { // it serves, perhaps for hours
		cmd.Process.Kill()
		cmd.Wait()
		return out, true
	}
	err = cmd.Wait()
	switch code := cmd.ProcessState.ExitCode(); {
	case trace.MatchString(stderr.String()), code != 0 && code != 1:
		t.Errorf("%q: %v\n%s", args, err, &stderr)
	case code == 1 && !refusal.MatchString(stderr.String()):
		t.Errorf("%q: not one line: %q", args, &stderr)
	}
	return out, err == nil
}

// inParallel calls f with each number below n, a few at a time.
func inParallel(n int, f func(i int)) {
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			f(i)
			<-slots
		})
	}
	all.Wait()
}

// mutate changes a text a few times: bytes, and stretches that go, come twice or come from another.
func mutate(chance *rand.Rand, text, other []byte) []byte {
	text = bytes.Clone(text)
	stretch := func(of []byte) (from, to int) {
		from = chance.IntN(len(of) + 1)
		return from, min(len(of), from+chance.IntN(10))
	}
	for more := true; more; more = chance.IntN(2) == 0 {
		from, to := stretch(text)
		switch chance.IntN(5) {
		case 0:
			if from < len(text) {
				text[from] ^= 1 << chance.IntN(8)
			}
		case 1:
			if from < len(text) {
				text[from] = "\"'[]{}=#.,\n-+0987xe_ \x00\xff"[chance.IntN(22)]
			}
		case 2:
			text = append(text[:from:from], text[to:]...)
		case 3:
			text = append(text[:to:to], text[from:]...)
		case 4:
			a, b := stretch(other)
			text = append(text[:from:from], append(bytes.Clone(other[a:b]), text[from:]...)...)
		}
	}
	return text
}

func TestMutatedConfigurations(t *testing.T) {
	e2e.Long(t)
	dir := t.TempDir()
	for _, name := range []string{"train.bin", "data/train.bin", "data/val.bin"} {
		e2e.Tokens(t, filepath.Join(dir, name), 60_000, 2)
	}
	reference, err := os.ReadFile("../config.toml")
	e2e.NoError(t, err)
	// Mutations of comments show little.
	plain := regexp.MustCompile(`(?m)^#( .*[^=\]]|)\n`).ReplaceAll(reference, nil)
	short := []byte("[batch]\nbatch_size = 4\nblock_size = 16\n[splits.train]\ntokens = [\"train.bin\", \"data/*.bin\"]\norder = 'shuffle'\n")
	mixture := []byte("[[splits.train.sources]]\ntokens = \"train.bin\"\nweight = 7\n" +
		"[[splits.train.sources]]\ntokens = \"data/val.bin\"\nweight = 0.5\n" +
		"[mount]\nmode = \"0440\"\ntimeout = \"30s\"\n[log]\nformat = \"json\"\n")
	texts := [][]byte{reference, plain, short, mixture, short, mixture}
	chance := rand.New(rand.NewPCG(1, 2))
	const n = 500
	var served sync.Map
	mutants := make([][]byte, n)
	for i := range mutants {
		mutants[i] = mutate(chance, texts[i%len(texts)], texts[chance.IntN(len(texts))])
	}
	inParallel(n, func(i int) {
		file := filepath.Join(dir, fmt.Sprintf("%d.toml", i))
		if err := os.WriteFile(file, mutants[i], 0o644); err != nil {
			t.Error(err)
		}
		if _, ok := runBad(t, "cat", "train", "-c", file, "--count", "1"); ok {
			served.Store(i, true)
		}
		if t.Failed() {
			t.Logf("%s is\n%q", file, mutants[i])
		}
	})
	ok := 0
	served.Range(func(any, any) bool { ok++; return true })
	if ok < n/20 || ok > n/2 {
		t.Errorf("%d of %d were served, which shows little", ok, n)
	}
}

// A token file is refused, or its bytes are right.
func TestMutatedTokenFiles(t *testing.T) {
	e2e.Long(t)
	const T, n = 16, 200
	dir := t.TempDir()
	at := func(i int) string { return filepath.Join(dir, fmt.Sprintf("%d.bin", i)) }
	chance := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		size := chance.IntN(200)
		if i%7 == 0 {
			size = chance.IntN(1 << 20)
		}
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(chance.Uint32())
		}
		var err error
		switch i % 13 {
		case 0:
			err = os.Mkdir(at(i), 0o755)
		case 1:
			err = syscall.Mkfifo(at(i), 0o644)
		case 2:
			err = os.Symlink(at(i), at(i))
		case 3:
			err = os.Symlink(at(i-1), at(i)) // to a loop
		case 4:
			odd := []string{"/dev/zero", "/dev/null", "/dev/full", "/dev/tty", "/proc/self/mem", "/proc/kmsg", "/proc/self/environ", "/"}
			err = os.Symlink(odd[chance.IntN(len(odd))], at(i))
		case 5:
			err = unix.Mknod(at(i), unix.S_IFSOCK|0o644, 0)
		case 6:
			err = os.WriteFile(at(i), nil, 0o644)
		case 7:
			err = os.WriteFile(at(i), data, 0)
		default:
			err = os.WriteFile(at(i), data, 0o644)
		}
		e2e.NoError(t, err)
	}
	inParallel(n, func(i int) {
		out, ok := runBad(t, "cat", "train", "-c", "/dev/null", "--set", "splits.train.tokens="+at(i), "--set", "batch.order=sequential",
			"--set", "batch.batch_size=1", "--set", fmt.Sprint("batch.block_size=", T))
		var data []byte
		var err error = os.ErrInvalid
		if info, _ := os.Stat(at(i)); info != nil && info.Mode().IsRegular() && info.Size() > 0 {
			data, err = os.ReadFile(at(i))
		}
		if good := err == nil && len(data)%2 == 0 && len(data) >= 2*(T+1); ok != good {
			t.Errorf("%s: served %v, want %v", at(i), ok, good)
		} else if good && !bytes.Equal(out, append(data[:2*T:2*T], data[2:2*T+2]...)) {
			t.Errorf("%s: other bytes", at(i))
		}
	})
}

// Whatever stands in a path, it is refused or gives the bytes that these settings give without a mount.
func TestMutatedPaths(t *testing.T) {
	config, _ := e2e.Small(t, 1)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	chance := rand.New(rand.NewPCG(5, 6))
	good := []string{
		"rank=3,world=8", "seed=7", "order=shuffle,seed=9", "batch_size=2,block_size=8", "dtype=int64,layout=tokens", "start=5,steps=9",
		"order=torch-2.6", "order=sequential,rank=1,world=2", strings.Repeat("seed=1,", 40), "world=16777216,batch_size=1",
	}
	var names []string
	for range 600 {
		name := mutate(chance, []byte(good[chance.IntN(len(good))]), []byte(good[chance.IntN(len(good))]))
		name = bytes.Map(func(r rune) rune {
			if r == 0 {
				return -1
			}
			return r
		}, name)
		switch string(name) {
		case "", ".", "..", "next", "batch":
			continue
		}
		names = append(names, string(name))
	}
	cmd, in, out := e2e.Start(t, "opens_of", m.Path("train"))
	go func() {
		for _, name := range names {
			fmt.Fprintln(in, hex.EncodeToString([]byte(name)))
		}
		in.Close()
	}()
	served := 0
	for _, name := range names {
		stop := e2e.AnswersSoon(t, cmd)
		if !out.Scan() {
			t.Fatalf("%q: no answer", name)
		}
		stop()
		got := out.Text()
		if data, err := hex.DecodeString(got); err == nil {
			served++
			if want, ok := runBad(t, "cat", "train/"+name, "-c", config); !ok || !bytes.Equal(data, want[:len(data)]) || len(data) != min(1000, len(want)) {
				t.Errorf("%q: other bytes", name)
			}
		} else if got != "errno ENOENT" && got != "errno EINVAL" && got != "errno ENAMETOOLONG" {
			t.Errorf("%q: %s", name, got)
		}
	}
	defer e2e.AnswersSoon(t, cmd)()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if served < len(names)/20 || served > len(names)/2 {
		t.Errorf("%d of %d were served, which shows little", served, len(names))
	}
	e2e.Read(t, "read", m.Path("train/next"))
	if text := m.Out.String(); strings.Contains(text, "panic") {
		t.Error(text)
	}
}

// Odd arguments are refused, and help is help.
func TestOddArguments(t *testing.T) {
	config, _ := e2e.Small(t, 1)
	dir := filepath.Dir(config)
	file := filepath.Join(dir, "train.bin")
	var lists [][]string
	for _, command := range []string{"mount", "unmount", "doctor", "cat", "inspect", "prepare", "bench", "plan", "version"} {
		if _, ok := runBad(t, command, "--help"); !ok {
			t.Errorf("%s --help failed", command)
		}
		for _, args := range []string{"--frobnicate", "-Z", "--help=maybe", "--set", "a b c d e"} {
			lists = append(lists, append([]string{command}, strings.Fields(args)...))
		}
	}
	for _, args := range []string{
		"nonsense", "--config", "mount -c", "mount -c " + config, "mount --set", "mount --set x " + dir, "mount -c " + dir + " " + dir,
		"mount -c " + config + " -c " + config + " " + file, "mount --ready-fd 3x " + dir, "mount -c /dev/zero/x " + dir,
		"mount --log /none/log -c " + config + " " + dir, "unmount /", "unmount " + file, "unmount /none/none", "unmount ''",
		"doctor /none -c /none", "cat", "cat train -c " + config + " --count -1", "cat train -c " + config + " --count 0",
		"cat train -c " + config + " --count 18446744073709551615", "cat train -c " + config + " --from 1099511627776",
		"cat train -c " + config + " --from x", "cat train -c " + config + " --format xml", "cat nosplit -c " + config, "cat / -c " + config,
		"cat train/ -c /none", "cat train/rank=-1 -c " + config, "inspect train -c " + config, "inspect train x -c " + config,
		"inspect train -1 -c " + config, "inspect train 99999999999999999999 -c " + config, "inspect train --find -1 -c " + config,
		"inspect train 1 --find 1 -c " + config, "inspect train --find 99999999 -c " + config, "prepare", "prepare " + file,
		"prepare /none --out " + dir, "prepare " + file + " --out " + dir + "/o --val 2", "prepare " + file + " --out " + dir + "/o --val NaN",
		"prepare " + file + " --out " + dir + "/o --by word", "prepare " + dir + " --out " + dir + "/o", "prepare " + file + " --out " + file + "/o",
		"plan", "plan --tokens 1G", "plan --tokens 1X --step 1s", "bench --batches x", "bench --tokens /none", "bench --set", "bench --dir",
		"bench --plot waits.svg", "bench --memory --tokenize",
	} {
		lists = append(lists, strings.Fields(args))
	}
	inParallel(len(lists), func(i int) {
		if _, ok := runBad(t, lists[i]...); ok {
			t.Errorf("%q: accepted", lists[i])
		}
	})
	if _, err := os.Stat(filepath.Join(dir, "o/train.bin")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("prepare has made something: %v", err)
	}
	if e2e.IsMounted(t, dir) {
		t.Error("mounted")
	}
}
