package doctor

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/cmd/batchfs/internal/testfiles"
	"batchfs/fs/state"
	"batchfs/internal/failure"
)

// newTestDoctor returns a doctor that sees only these files, and the buffer for its output.
func newTestDoctor(t *testing.T, files map[string]string) (d *doctor, out *bytes.Buffer) {
	t.Helper()
	out = new(bytes.Buffer)
	d = newDoctor(out)
	d.root = t.TempDir()
	for name, text := range files {
		testfiles.Write(t, map[string]string{filepath.Join(d.root, name): text})
	}
	return d, out
}

func TestDoctorOnDevice(t *testing.T) {
	// Docker makes a directory of a volume whose source is missing.
	for want, files := range map[string]map[string]string{"no such file": nil, "not the device": {"dev/fuse": ""}, "is a directory": {"dev/fuse/a": ""}} {
		d, out := newTestDoctor(t, files)
		_, kind := d.device()
		ok := d.check("/dev/fuse", d.device)
		if err := d.finish(); ok || err == nil || failure.KindOf(kind) != failure.NoFUSE || !strings.HasPrefix(out.String(), "FIX  /dev/fuse: ") || !strings.Contains(out.String(), want) {
			t.Errorf("%v, %v, %v, %s, want %s", ok, err, kind, out, want)
		}
	}
}

// A check that hangs is reported, and the other checks still run. Checks that pass are printed
// last.
func TestDoctorDoesNotWait(t *testing.T) {
	d, out := newTestDoctor(t, nil)
	d.check("mountpoint", d.mountpoint)
	d.timeout = 10 * time.Millisecond
	stuck := make(chan struct{})
	defer close(stuck)
	d.check("splits.train", func() (string, error) {
		<-stuck
		return "", nil
	})
	d.checkWithin(inStore, "splits.far", func() (string, error) {
		<-stuck
		return "", nil
	})
	d.finish()
	for i, want := range []string{"FIX  splits.train: no answer in 10ms: the disk or ", "FIX  splits.far: no answer in 10ms: the store or the network ", "ok   mountpoint: none named"} {
		if got := strings.Split(out.String(), "\n")[i]; !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDoctorOfWorkers(t *testing.T) {
	file, shared, err := state.New()
	testfiles.NoError(t, err)
	defer file.Close()
	defer shared.Close()
	check := func(want string, fails bool) {
		t.Helper()
		if text, err := describeWorker("/mnt", shared); fails != (err != nil) || !strings.Contains(text+fmt.Sprint(err), want) {
			t.Errorf("%q, %v, want %q", text, err, want)
		}
	}
	check("/mnt is mounted, its first worker is starting", false)
	shared.Heartbeat.Add(-int64(5 * time.Second))
	check("/mnt is stuck: its first worker has not answered for 5s; ", true)
	shared.Worker.Store(77)
	check("/mnt is stuck: its worker, process 77, has not answered for 5s; ", true)
	shared.Heartbeat.Add(int64(5 * time.Second))
	check("/mnt is mounted, served by process 77", false)
}
