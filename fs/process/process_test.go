package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReadStat(t *testing.T) {
	stat, err := ReadStat(Dir(os.Getpid()))
	if err != nil || stat.Began == 0 || stat.State == 0 {
		t.Errorf("this process: %+v, %v", stat, err)
	}
	dir := t.TempDir()
	rest := strings.Repeat(" 0", 28) + " "
	for text, want := range map[string]Stat{
		"7 (a) S 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 100" + rest + "0\n":        {'S', 4711, 0, 130 * time.Millisecond},
		"7 (a b) c) D 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 100" + rest + "0\n":   {'D', 4711, 0, 130 * time.Millisecond},
		"7 () Z ((()) Z 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 100" + rest + "9\n": {'Z', 4711, 9, 130 * time.Millisecond},
	} {
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadStat(dir); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "7", "7 (a)", "7 (a) S 1 2 3", "7 (a) S 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 never 100" + rest + "0\n",
		"7 (a) S 1 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 4711 100" + rest + "never\n"} {
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadStat(dir); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
	if u := User(os.Getpid()); u != os.Getuid() {
		t.Errorf("this process is of user %d, want %d", u, os.Getuid())
	}
	if u := User(1 << 30); u != -1 {
		t.Errorf("no process is of user %d", u)
	}
	if _, err := ReadStat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("no process: %v", err)
	}
}
