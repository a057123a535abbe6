package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

var block = regexp.MustCompile("(?ms)^```(sh|python|c)\n(.*?)^```$")

var library = regexp.MustCompile(`(?m)^(?:import|from) (torch|safetensors)`)

// What README says to type works, in the order in which it says so. CI runs its make commands.
func TestREADME(t *testing.T) {
	needFUSE(t)
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mountpoint := filepath.Join(dir, "mnt")
	for _, d := range []string{"mnt", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
	config, err := os.ReadFile("../config.toml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "config.toml"), config)
	write(t, filepath.Join(dir, "book.txt"), []byte(strings.Repeat("It was the best of times, it was the worst of times.\n", 3000)))
	if err := os.Symlink(batchfs, filepath.Join(dir, "bin/batchfs")); err != nil {
		t.Fatal(err)
	}

	for _, b := range block.FindAllStringSubmatch(string(text), -1) {
		language, code := b[1], strings.ReplaceAll(b[2], "/mnt/batches", mountpoint)
		var cmd *exec.Cmd
		switch {
		case strings.HasPrefix(code, "make "):
			continue
		case language == "sh":
			cmd = exec.Command("bash", "-euo", "pipefail", "-c", code)
		case language == "python":
			if m := library.FindStringSubmatch(code); m != nil && exec.Command(python, "-c", "import "+m[1]).Run() != nil {
				code = "compile('''" + code + "''', 'README', 'exec')"
			}
			cmd = exec.Command(python, "-c", code)
		case language == "c":
			write(t, filepath.Join(dir, "reader.c"), []byte(code))
			cmd = exec.Command("sh", "-c", "cc -Wall -Wextra -Werror -o reader reader.c && ./reader")
		}
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "XDG_STATE_HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s\n%s", err, code, out)
		}
	}
	if isMounted(t, mountpoint) {
		t.Error("README leaves a mount behind")
	}
}
