package bench

import (
	"fmt"
	"os"
	"strings"
)

// A usage is the memory of a process, in bytes.
type usage struct {
	Resident int64 `json:"rss"`
	RssAnon  int64 `json:"rss_anon"`
	RssFile  int64 `json:"rss_file"`
	RssShmem int64 `json:"rss_shmem"` // which mapped files on tmpfs count as
}

func usageOf(pid int) (u usage, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	kib := map[string]*int64{"VmRSS": &u.Resident, "RssAnon": &u.RssAnon, "RssFile": &u.RssFile, "RssShmem": &u.RssShmem}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if field, ok := kib[key]; ok {
			fmt.Sscan(value, field)
			*field <<= 10
		}
	}
	return u, err
}

// diskBytes returns the bytes that a process has read from disks.
func diskBytes(pid int) (n int64) {
	io, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, after, _ := strings.Cut(string(io), "\nread_bytes: ")
	fmt.Sscan(after, &n)
	return n
}
