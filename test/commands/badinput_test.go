package commands

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
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
