package commands

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"batchfs/internal/printable"
	"batchfs/test/e2e"
)

// Every command fails with an error message if its standard output is on a full disk.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	full := e2e.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	config, _ := e2e.SmallConfig(t, 1)
	dir := filepath.Dir(config)
	tokens, text := filepath.Join(dir, "train.bin"), e2e.Write(t, filepath.Join(dir, "book.txt"), strings.Repeat("to be or not to be\n", 500))
	begin := func(args ...string) (cmd *exec.Cmd, stderr e2e.LogFile, ended <-chan struct{}) {
		t.Helper()
		file := e2e.Must(os.CreateTemp(dir, "stderr"))(t)
		defer file.Close()
		cmd = exec.Command(e2e.PlainBatchfs, args...)
		cmd.Stdout, cmd.Stderr = full, file
		return cmd, e2e.LogFile(file.Name()), e2e.Begin(t, cmd)
	}
	failed := func(cmd *exec.Cmd, stderr e2e.LogFile, ended <-chan struct{}) {
		t.Helper()
		e2e.AwaitExit(t, cmd, ended)
		const want = "batchfs: standard output: no space left on device\n"
		if cmd.ProcessState.ExitCode() != 1 || strings.Count(stderr.String(), want) != 1 {
			t.Errorf("%s: %v, standard error %q, want exit status 1 and a full disk", cmd.Args, cmd.ProcessState, stderr)
		}
	}
	fails := func(args ...string) {
		t.Helper()
		failed(begin(args...))
	}
	commands := regexp.MustCompile(`(?m)^  (\w+)  .*$`).FindAllStringSubmatch(e2e.Run(t, e2e.PlainBatchfs, "--help"), -1)
	if len(commands) < 20 {
		t.Fatalf("--help lists only the commands %q", commands)
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
	e2e.CheckFails(t, "no batchfs is mounted there", e2e.PlainBatchfs, "unmount", background)
	cmd, stderr, ended := begin("mount", "-c", config, background)
	e2e.AwaitText(t, stderr, "msg=mounted")
	e2e.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	failed(cmd, stderr, ended)
}

// mount -d succeeds if the reader of its output has closed the pipe, as in mount -d | head -n 1.
func TestClosedPipe(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	config, _ := e2e.SmallConfig(t, 1)
	dir := t.TempDir()
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	reader, writer, err := os.Pipe()
	e2e.NoError(t, err)
	reader.Close()
	defer writer.Close()
	cmd := exec.Command(e2e.PlainBatchfs, "mount", "-d", "-c", config, "--log", filepath.Join(t.TempDir(), "log"), dir)
	cmd.Stdout = writer
	e2e.NoError(t, cmd.Run())
	e2e.Run(t, e2e.PlainBatchfs, "unmount", dir)
}

// The commands that messages advise can be run, whatever the path is.
func TestAdvisedCommands(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	config, _ := e2e.SmallConfig(t, 1)
	for _, name := range []string{"plain", "it's \"my\" $HOME", "a\nb\xff"} {
		parent := t.TempDir()
		dir := filepath.Join(parent, name)
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
		// follow runs the command that stands at the end of a message of batchfs.
		follow := func(printed, before string) {
			t.Helper()
			_, advised, ok := strings.Cut(printed, before)
			if !ok || name == "plain" && !strings.HasSuffix(strings.TrimSpace(advised), " "+dir) {
				t.Errorf("%q, want %q and a command with %s", printed, before, dir)
			}
			e2e.Run(t, "env", "PATH="+filepath.Dir(e2e.PlainBatchfs)+":"+os.Getenv("PATH"), "bash", "-c", advised)
		}
		mount := []string{e2e.PlainBatchfs, "mount", "-d", "-c", config, "--log", filepath.Join(parent, "log"), dir}
		_, stderr, _ := e2e.Try(t, mount...)
		follow(stderr, "create it with: ")
		out := e2e.Run(t, mount...)
		_, stderr, _ = e2e.Try(t, mount...)
		follow(stderr, "already mounted there; read that one, or end it with: ")
		e2e.CheckFails(t, "no batchfs is mounted there", e2e.PlainBatchfs, "unmount", dir)
		e2e.Run(t, mount...)
		follow(out, "stop with: ")

		text := e2e.Write(t, filepath.Join(dir, "text.bin"), strings.Repeat("to be or not to be\n", 500))
		none := filepath.Join(dir, "none")
		arg := printable.ShellArg
		e2e.CheckFails(t, "batchfs mount --data "+arg(dir)+" "+arg(dir)+"; usage", e2e.PlainBatchfs, "mount", dir, dir)
		e2e.CheckFails(t, "batchfs prepare "+arg(text)+" --out DIR", e2e.PlainBatchfs, "cat", "train", "-c", "/dev/null", "--set", "splits.train.tokens="+text)
		e2e.CheckFails(t, "--set "+arg("splits.train.tokens="+text)+" instead", e2e.PlainBatchfs, "cat", "train", "--data", text)
		e2e.CheckFails(t, "batchfs prepare TEXT --out "+arg(none)+"\n", e2e.PlainBatchfs, "cat", "train", "--data", none)
	}
}

// File names cannot forge a line of output, reorder its text, or control the terminal.
func TestForgedNames(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	const forged = "data\nFORGED\u202e\x1b[2J\xff"
	dir := filepath.Join(t.TempDir(), forged)
	tokens := e2e.WriteTokens(t, filepath.Join(dir, "train.bin"), 60_000, 2)
	mountpoint := filepath.Join(dir, "mnt")
	e2e.NoError(t, os.Mkdir(mountpoint, 0o755))
	t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
	data := []string{"--data", dir, "--set", "batch.block_size=16"}
	for _, test := range []struct {
		args []string
		want string // beginning of a line; %s stands for the quoted directory
	}{
		{append(data, "mount", "-d", "--log", filepath.Join(dir, "log"), mountpoint), "%s/mnt serves"},
		{append(data, "mount", mountpoint), "batchfs: mountpoint "},
		{[]string{"list"}, "%s/mnt  "}, // a longer mountpoint widens the column
		{[]string{"doctor", mountpoint}, "ok   mountpoint: %s/mnt is mounted"},
		{append(data, "doctor", mountpoint), "ok   splits.train: 60000 tokens in 1 file: %s/train.bin"},
		{[]string{"why", mountpoint}, "%s/mnt can be read"},
		{[]string{"why", mountpoint + "/none"}, "batchfs: "},
		{[]string{"seek", mountpoint + "/train", "7"}, "the next batch of %s/mnt/train is 7"},
		{[]string{"restart", mountpoint}, "process "},
		{append(data, "inspect", "train", "3"), "row 0: number "},
		{append(data, "inspect", "train", "--find", "3"), "token 3 of %s/train.bin"},
		{append(data, "check", "train"), "train: 1 file"},
		{append(data, "plan", "--step", "1s"), "The files are local, not in a store"},
		{[]string{"info", tokens}, "%s/train.bin"},
		{[]string{"info", dir + "/none"}, "batchfs: "},
		{[]string{"index", tokens, "--eot", "7"}, "%s/train.bin.index: "},
		{[]string{"prepare", dir + "/none", "--out", dir + "/out", "--by", "byte"}, "batchfs: "},
		{[]string{"unmount", mountpoint}, "%s/mnt is unmounted"},
		{[]string{"unmount", mountpoint}, "batchfs: "},
	} {
		out, stderr, _ := e2e.Try(t, append([]string{e2e.PlainBatchfs}, test.args...)...)
		text := "\n" + out + stderr
		if want := "\n" + strings.ReplaceAll(test.want, "%s", filepath.Dir(dir)+`/data\nFORGED\u202e\x1b[2J\xff`); !strings.Contains(text, want) ||
			strings.Contains(text, "\nFORGED") || strings.ContainsAny(text, "\u202e\x1b") || !utf8.ValidString(text) {
			t.Errorf("%q: %q, want %q", test.args, text, want)
		}
		if test.args[0] == "list" {
			top := startTop(t, mountpoint)
			e2e.Equal(t, "the mountpoint in JSON", top().Mountpoint, strings.ToValidUTF8(mountpoint, "\ufffd"))
		}
	}
	for _, args := range [][]string{{"info", tokens}, append(data, "check", "train"), append(data, "inspect", "train", "3"), append(data, "inspect", "train", "--find", "3")} {
		e2e.Equal(t, "JSON of "+args[0], json.Valid([]byte(e2e.Run(t, append(append([]string{e2e.PlainBatchfs}, args...), "--json")...))), true)
	}
}
