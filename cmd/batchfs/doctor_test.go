package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/cmd/batchfs/internal/testfiles"
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

func TestDoctor(t *testing.T) {
	const meminfo, cgroup, group = "proc/meminfo", "proc/self/cgroup", "sys/fs/cgroup/a"
	mib := func(n int) string { return fmt.Sprintf("%d\n", n<<20) }
	gib := mib(1024)
	free := func(mib string) string {
		return "MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   " + mib + "000 kB\n"
	}
	for _, test := range []struct {
		name  string
		check func(*doctor) (string, error)
		files map[string]string
		want  string
	}{
		{"/dev/fuse", (*doctor).device, nil, "FIX  /dev/fuse: "},
		{"/dev/fuse", (*doctor).device, map[string]string{"dev/fuse": ""}, "ok   /dev/fuse: "},

		{"memory", (*doctor).memory, map[string]string{meminfo: free("1048")},
			"ok   memory: 1023 MiB are free, and batchfs uses at most 192 MiB"},
		{"memory", (*doctor).memory, map[string]string{meminfo: free("100")},
			"FIX  memory: 97 MiB are free, but batchfs may use 192 MiB; lower the budget, as with --set memory.budget=17645568"},
		{"memory", (*doctor).memory,
			map[string]string{meminfo: free("1048"), cgroup: "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "67108864\n"},
			"FIX  memory: 64 MiB are free"},

		// A cgroup's inactive page cache is available memory.
		{"memory", (*doctor).memory, map[string]string{meminfo: free("2097"), cgroup: "0::/a\n", group + "/memory.max": gib, group + "/memory.current": mib(900),
			group + "/memory.stat": "anon 1\ninactive_anon 5\nactive_file 7\ninactive_file " + mib(200)},
			"ok   memory: 324 MiB are free, and batchfs uses at most 192 MiB"},
		{"memory", (*doctor).memory, map[string]string{meminfo: free("2097"), cgroup: "0::/a\n", group + "/memory.max": gib, group + "/memory.current": mib(1100)},
			"FIX  memory: 0 MiB are free"},
		// The cgroup with the least available memory decides, unless the machine has less.
		{"memory", (*doctor).memory, map[string]string{meminfo: free("2097"), cgroup: "0::/a/b\n",
			group + "/b/memory.max": mib(500), group + "/b/memory.current": mib(100), group + "/memory.max": gib, group + "/memory.current": mib(800)},
			"ok   memory: 224 MiB are free"},
	} {
		d, out := newTestDoctor(t, test.files)
		ok := d.check(test.name, func() (string, error) { return test.check(d) })
		if err := d.finish(); ok != strings.HasPrefix(test.want, "ok") || (err == nil) != ok {
			t.Errorf("%s %v: %v, %v", test.name, test.files, ok, err)
		}
		if !strings.HasPrefix(out.String(), test.want) || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s %v:\n got %swant %s", test.name, test.files, out, test.want)
		}
	}
}

// A check that hangs is reported, and the other checks still run. Checks that pass are printed
// last.
func TestDoctorDoesNotWait(t *testing.T) {
	d, out := newTestDoctor(t, map[string]string{"proc/meminfo": "MemAvailable: 9999999 kB\n"})
	d.check("memory", d.memory)
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
	for i, want := range []string{"FIX  splits.train: no answer in 10ms: the disk or ", "FIX  splits.far: no answer in 10ms: the store or the network ", "ok   memory: "} {
		if got := strings.Split(out.String(), "\n")[i]; !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
