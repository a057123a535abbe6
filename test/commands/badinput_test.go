package commands

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"batchfs/test/e2e"
)

var (
	oneLineError = regexp.MustCompile(`\Abatchfs: [^\n]*\n\z`)
	stackTrace   = regexp.MustCompile(`(?m)^(goroutine \d|panic:|fatal error:|runtime error|SIG[A-Z]+)`)
)

// runBad runs the program on input that may be bad, and returns the first bytes of its output. The
// program must succeed, or report in one line why it does not.
func runBad(t *testing.T, args ...string) (out []byte, ok bool) {
	t.Helper()
	cmd := e2e.Command(t, e2e.PlainBatchfs, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe := e2e.Must(cmd.StdoutPipe())(t)
	e2e.NoError(t, cmd.Start())
	out, _ = io.ReadAll(io.LimitReader(pipe, 1<<16))
	if len(out) == 1<<16 { // it prints batches, perhaps for hours
		cmd.Process.Kill()
		cmd.Wait()
		return out, true
	}
	err := cmd.Wait()
	switch code := cmd.ProcessState.ExitCode(); {
	case stackTrace.MatchString(stderr.String()), code != 0 && code != 1:
		t.Errorf("%q: %v, want exit status 0 or 1 and no stack trace\n%s", args, err, &stderr)
	case code == 1 && !oneLineError.MatchString(stderr.String()):
		t.Errorf("%q: standard error is %q, want one line", args, &stderr)
	}
	return out, err == nil
}

// Odd arguments are rejected, and --help succeeds.
func TestOddArguments(t *testing.T) {
	config, _ := e2e.SmallConfig(t, 1)
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
		"doctor /none -c /none", "cat", "cat train -c " + config + " --count -1",
		"cat train -c " + config + " --count 18446744073709551615", "cat train -c " + config + " --from 1099511627776",
		"cat train -c " + config + " --from x", "cat train -c " + config + " --format xml", "cat nosplit -c " + config, "cat / -c " + config,
		"cat train/ -c /none", "cat train/rank=-1 -c " + config, "inspect train -c " + config, "inspect train x -c " + config,
		"inspect train -1 -c " + config, "inspect train 99999999999999999999 -c " + config, "inspect train --find -1 -c " + config,
		"inspect train 1 --find 1 -c " + config, "inspect train --find 99999999 -c " + config, "prepare", "prepare " + file,
		"prepare /none --out " + dir, "prepare " + file + " --out " + dir + "/o --val 2", "prepare " + file + " --out " + dir + "/o --val NaN",
		"prepare " + file + " --out " + dir + "/o --by word", "prepare " + dir + " --out " + dir + "/o", "prepare " + file + " --out " + file + "/o",
		"plan", "plan --tokens 1G", "plan --tokens 1X --step 1s", "bench --tokens /none", "bench --set", "bench --dir",
	} {
		lists = append(lists, strings.Fields(args))
	}
	var running sync.WaitGroup
	limit := make(chan struct{}, 4)
	for _, args := range lists {
		limit <- struct{}{}
		running.Go(func() {
			if _, ok := runBad(t, args...); ok {
				t.Errorf("%q is accepted, want an error", args)
			}
			<-limit
		})
	}
	running.Wait()
	if _, err := os.Stat(filepath.Join(dir, "o/train.bin")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("prepare wrote train.bin in spite of bad arguments: %v", err)
	}
	e2e.NotMounted(t, dir)
}
