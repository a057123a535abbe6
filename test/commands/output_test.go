package commands

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// Every command whose standard output is on a full disk fails and says so.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	full := e2e.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	config, _ := e2e.Small(t, 1)
	dir := filepath.Dir(config)
	tokens, text := filepath.Join(dir, "train.bin"), e2e.Write(t, filepath.Join(dir, "book.txt"), strings.Repeat("to be or not to be\n", 500))
	begin := func(args ...string) (cmd *exec.Cmd, stderr e2e.LogFile, ended <-chan struct{}) {
		t.Helper()
		file := e2e.Must(os.CreateTemp(dir, "stderr"))(t)
		defer file.Close()
		cmd = e2e.Command(t, e2e.PlainBatchfs, args...)
		cmd.Stdout, cmd.Stderr = full, file
		return cmd, e2e.LogFile(file.Name()), e2e.Begin(t, cmd)
	}
	failed := func(cmd *exec.Cmd, stderr e2e.LogFile, ended <-chan struct{}) {
		t.Helper()
		<-ended
		const want = "batchfs: standard output: no space left on device\n"
		if cmd.ProcessState.ExitCode() != 1 || strings.Count(stderr.String(), want) != 1 {
			t.Errorf("%s: %v %s", cmd.Args, cmd.ProcessState, stderr)
		}
	}
	fails := func(args ...string) {
		t.Helper()
		failed(begin(args...))
	}
	commands := regexp.MustCompile(`(?m)^  (\w+)  .*$`).FindAllStringSubmatch(e2e.Run(t, e2e.PlainBatchfs, "--help"), -1)
	if len(commands) < 20 {
		t.Fatalf("the commands are %q", commands)
	}
	for _, c := range commands {
		fails(c[1], "--help")
	}
	m := e2e.Mount(t, "-c", config)
	for _, args := range [][]string{
		{}, {"--help"}, {"--version"}, {"version"}, {"help"}, {"completion", "bash"},
		{"list"}, {"top", m.Dir}, {"doctor", m.Dir}, {"doctor", "--mounted", m.Dir}, {"why", m.Path("train/next")}, {"seek", m.Path("train"), "7"},
		{"restart", m.Dir}, {"unmount", m.Dir},
		{"info", tokens}, {"info", tokens, "--json"}, {"check", "train", "-c", config}, {"check", "train", "-c", config, "--json"},
		{"index", tokens, "--eot", "7"}, {"cat", "train", "-c", config}, {"cat", "train", "-c", config, "--format", "info"},
		{"inspect", "train", "3", "-c", config}, {"inspect", "train", "3", "-c", config, "--json"}, {"inspect", "train", "--find", "3", "-c", config},
		{"view", "-c", config}, {"plan", "-c", config, "--step", "1s"}, {"plan", "-c", config, "--step", "1s", "--json"},
		{"prepare", text, "--out", filepath.Join(dir, "prepared"), "--by", "byte"},
		{"cache", "status", "-c", config, "--set", "store.cache_dir=" + filepath.Join(dir, "cache")},
		{"cache", "prune", "-c", config, "--set", "store.cache_dir=" + filepath.Join(dir, "cache")},
	} {
		fails(args...)
	}
	m.AwaitEnd(t)
	background := t.TempDir()
	t.Cleanup(func() { syscall.Unmount(background, syscall.MNT_DETACH) })
	fails("mount", "-d", "-c", config, "--log", filepath.Join(dir, "log"), background)
	e2e.Run(t, e2e.PlainBatchfs, "unmount", background) // it is mounted nevertheless
	cmd, stderr, ended := begin("mount", "-c", config, background)
	e2e.Await(t, "a mount that serves", func() bool { return strings.Contains(stderr.String(), "msg=mounted") })
	e2e.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	failed(cmd, stderr, ended)
}
