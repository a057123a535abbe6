package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A host is where the figures are from.
type host struct {
	Cores          int     `json:"cores"`
	Load           float64 `json:"load"` // runnable processes in the minute before: best none
	Kernel         string  `json:"kernel"`
	Go             string  `json:"go"`
	hello                  // of the Python trainer
	DiskReadAhead  int     `json:"disk_read_ahead_kb"` // of the device that the token file lies on; 0: unknown
	MountReadAhead int     `json:"mount_read_ahead_kb"`
	ColdBytes      int64   `json:"cold_file_bytes"`
	WarmBytes      int64   `json:"warm_file_bytes"`
}

func (b *bench) host(trainer hello) (host, error) {
	h := host{Cores: runtime.NumCPU(), Load: b.load, Go: runtime.Version(), hello: trainer,
		DiskReadAhead: ReadAhead(b.cold), MountReadAhead: b.readAhead}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return h, err
	}
	h.Kernel = string(bytes.TrimRight(uname.Release[:], "\x00"))
	for _, file := range []struct {
		path string
		size *int64
	}{{b.warm, &h.WarmBytes}, {b.cold, &h.ColdBytes}} {
		info, err := os.Stat(file.path)
		if err != nil {
			return h, err
		}
		*file.size = info.Size()
	}
	return h, nil
}

// ReadAhead is that of the filesystem on which a file lies, in KiB, or 0 where the kernel does not say.
func ReadAhead(path string) int {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, name := range []string{
		"/sys/class/bdi/" + device + "/read_ahead_kb",
		"/sys/dev/block/" + device + "/queue/read_ahead_kb",
		"/sys/dev/block/" + device + "/../queue/read_ahead_kb", // of a partition
	} {
		if n := number(name); n > 0 {
			return n
		}
	}
	return 0
}

func loadAverage() (load float64) {
	text, _ := os.ReadFile("/proc/loadavg")
	fmt.Sscan(string(text), &load)
	return load
}

func number(path string) int {
	text, _ := os.ReadFile(path)
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// diskBytes is what a process and its children have read from disks.
func diskBytes(pid int) (n int64) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	io, _ := os.ReadFile(dir + "/io")
	if _, after, ok := strings.Cut(string(io), "\nread_bytes: "); ok {
		line, _, _ := strings.Cut(after, "\n")
		n, _ = strconv.ParseInt(line, 10, 64)
	}
	threads, _ := filepath.Glob(dir + "/task/*/children")
	for _, thread := range threads {
		children, _ := os.ReadFile(thread)
		for _, child := range strings.Fields(string(children)) {
			pid, _ := strconv.Atoi(child)
			n += diskBytes(pid)
		}
	}
	return n
}
