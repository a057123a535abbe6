package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"batchfs/cache"
)

// A host describes the machine that the figures are of.
type host struct {
	Cores          int     `json:"cores"`
	Load           float64 `json:"load"` // runnable processes in the minute before; 0 is best
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
		DiskReadAhead: cache.DiskReadAhead(b.cold), MountReadAhead: b.readAhead}
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

func loadAverage() (load float64) {
	text, _ := os.ReadFile("/proc/loadavg")
	fmt.Sscan(string(text), &load)
	return load
}
