package processes

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/internal/testwait"
)

// Logging to a full pipe does not block. When the pipe is read, only whole lines follow.
func TestLogToAFullPipe(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			read, write, err := os.Pipe()
			testfiles.NoError(t, err)
			defer read.Close()
			defer write.Close()
			log, flush := newLog(write, config.Log{Level: "error", Format: format}, "/mnt")
			long := strings.Repeat("long ", 10_000)
			for range 1000 {
				log.Error("line", "long", long)
			}
			flush()
			read.SetReadDeadline(testwait.Deadline(t))
			for lines := bufio.NewScanner(read); ; log.Error("last") {
				if !lines.Scan() {
					t.Fatal("no line to read: ", lines.Err())
				}
				if len(lines.Text()) >= maxLine || format == "json" && !json.Valid(lines.Bytes()) {
					t.Fatalf("%d bytes: %s", len(lines.Text()), lines.Text())
				}
				if strings.Contains(lines.Text(), "last") {
					break
				}
			}
		})
	}
}

// However long its values are, and however much longer they become when they are escaped, a line
// is whole, and has all of them.
func TestLogIsWhole(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		for _, long := range []string{"x", " ", "\x00", "\xff", "\"", "\n", "\u202e", "é"} {
			var out bytes.Buffer
			log, flush := newLog(&out, config.Log{Level: "info", Format: format}, "/mnt")
			long = strings.Repeat(long, 5000)
			log.With("a", long).Error(long, "b", long, slog.Group("g", "c", errors.New(long)), "last", 7)
			flush()
			line := out.String()
			if len(line) > maxLine || len(line) < maxLine/2 || strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
				t.Errorf("%s: %d bytes in a line: %s", format, len(line), line)
			}
			var entry struct {
				Time       time.Time
				Mountpoint string
				G          struct{ C string }
				Last       int
			}
			if format == "text" {
				if !strings.HasSuffix(line, " last=7\n") {
					t.Errorf("a line ends with %q", line[len(line)-20:])
				}
			} else if err := json.Unmarshal(out.Bytes(), &entry); err != nil || entry.Mountpoint != "/mnt" || entry.G.C == "" || entry.Last != 7 || entry.Time.IsZero() {
				t.Errorf("%+v, %v: %s", entry, err, line)
			}
		}
	}
}

// A line is in the file when the call that logs it returns.
func TestLogToAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := openLog(path)
	testfiles.NoError(t, err)
	defer file.Close()
	log, _ := newLog(file, config.Log{Level: "info", Format: "text"}, "/mnt")
	for n := range 1000 {
		log.Info("line")
		if text, _ := os.ReadFile(path); bytes.Count(text, []byte("\n")) != n+1 {
			t.Fatalf("%d lines after %d", bytes.Count(text, []byte("\n")), n+1)
		}
	}
}

// No logged text can move the cursor of a terminal or change the direction of its text.
func TestLogIsPrintable(t *testing.T) {
	var out bytes.Buffer
	for _, format := range []string{"text", "json"} {
		log, flush := newLog(&out, config.Log{Level: "info", Format: format}, "/mnt\x1b\u009b\x7f\xff")
		log.Info("bad \u009b", "err", fmt.Errorf("\x1b[2J\u009b\x7f\xff\u202e"), slog.Group("g", "k", "\u009b"))
		flush()
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\u009b\x7f\ufffd\u202e") || strings.Count(text, "\n") != 2 {
		t.Errorf("%q", text)
	}
}

// Root's logs are not in the home directory of another user, which HOME names under sudo -E.
func TestStateHomeOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may give files away")
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("SUDO_UID", "65534")
	for owner, want := range map[int]string{0: home, 65534: "/root"} {
		testfiles.NoError(t, os.Chown(home, owner, owner))
		if dir, err := stateHome(); err != nil || dir != want+"/.local/state" {
			t.Errorf("the home directory of user %d: %q, %v, want %s/.local/state", owner, dir, err, want)
		}
	}
}
