package test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A service manager hears when batches can be read, and when the mount begins to end.
func TestNotify(t *testing.T) {
	needFUSE(t)
	config, want := small(t, 1)
	address := net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	socket, err := net.ListenUnixgram(address.Net, &address)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	hear := func(want string) {
		t.Helper()
		message := make([]byte, 1000)
		socket.SetReadDeadline(time.Now().Add(limit))
		if n, err := socket.Read(message); err != nil || string(message[:n]) != want {
			t.Fatalf("%v, %q, want %s", err, message[:n], want)
		}
	}
	dir := t.TempDir()
	m := &mounted{dir: dir, cmd: exec.Command(batchfs, "mount", "-c", config, dir), done: make(chan struct{})}
	m.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+address.Name)
	m.start(t)
	hear("READY=1")
	if got := read(t, "read", m.path("train/next"))[0]; got != want[0] {
		t.Errorf("batch 0 is %s, want %s", got, want[0])
	}
	m.cmd.Process.Signal(syscall.SIGTERM)
	hear("STOPPING=1")
}

// The unit that users copy is one that systemd takes, and its mount can be seen by others.
func TestUnit(t *testing.T) {
	text, err := os.ReadFile("../examples/batchfs.service")
	if err != nil {
		t.Fatal(err)
	}
	namespace := regexp.MustCompile(`(?m)^(Private|Protect|Dynamic|Bind|Root|Temporary|Inaccessible|ReadOnly|ReadWrite|NoExec|Mount)\w+=`)
	if option := namespace.FindString(string(text)); option != "" {
		t.Errorf("%s gives the service a mount namespace of its own", option)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip(err)
	}
	const program = "/usr/local/bin/batchfs"
	if n := strings.Count(string(text), program); n != 3 {
		t.Errorf("%d times %s", n, program)
	}
	unit := filepath.Join(t.TempDir(), "batchfs.service")
	write(t, unit, []byte(strings.ReplaceAll(string(text), program, plainBatchfs)))
	if stdout, stderr, err := try(t, "systemd-analyze", "verify", unit); err != nil || stdout+stderr != "" {
		t.Errorf("%v: %s%s", err, stdout, stderr)
	}
}

// What the unit leaves of root's rights is enough.
func TestUnitsCapabilities(t *testing.T) {
	needFUSE(t)
	text, err := os.ReadFile("../examples/batchfs.service")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("setpriv"); err != nil || os.Geteuid() != 0 {
		t.Skip("it takes root, and setpriv")
	}
	set := "-all"
	for _, name := range strings.Fields(regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindStringSubmatch(string(text))[1]) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	file := tokens(t, filepath.Join(t.TempDir(), "train.bin"), 60_000, 2)
	if err := os.Chmod(file, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	m := mountProgram(t, exec.Command("setpriv", "--no-new-privs", "--bounding-set", set, batchfs), "--data", filepath.Dir(file))
	read(t, "read", m.path("train/next"))
}
