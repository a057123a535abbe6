package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log is of the form and of the level that were asked for.
func TestLog(t *testing.T) {
	config, _ := small(t, 1)
	for _, test := range []struct {
		args  []string
		lines int
	}{
		{nil, 3},
		{[]string{"--set", "log.level=error"}, 0},
	} {
		file := filepath.Join(t.TempDir(), "log")
		m := mount(t, append(test.args, "-c", config, "--log", file, "--set", "log.format=json")...)
		try(t, "stat", m.path("train/colour=red")) // of which the log says something
		m.stop(t)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n < test.lines || test.lines == 0 && n > 0 {
			t.Errorf("%s: %d lines:\n%s", test.args, n, text)
		}
		for line := range strings.Lines(string(text)) {
			var said struct{ Time, Level, Msg, Mountpoint string }
			if err := json.Unmarshal([]byte(line), &said); err != nil || said.Msg == "" || said.Mountpoint != m.dir || said.Level != "INFO" && said.Level != "WARN" {
				t.Errorf("%v: %s", err, line)
			}
		}
	}
}
