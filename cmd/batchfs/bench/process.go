package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A usage is the memory, in bytes, and other resources of a process.
type usage struct {
	Resident   int64 `json:"rss"`
	RssAnon    int64 `json:"rss_anon"`
	RssFile    int64 `json:"rss_file"`
	RssShmem   int64 `json:"rss_shmem"` // which mapped files on tmpfs count as
	Pss        int64 `json:"pss"`
	PageTables int64 `json:"page_tables"`
	OpenFiles  int64 `json:"open_files"`
	Threads    int64 `json:"threads"`
}

func usageOf(pid int) (u usage, err error) {
	proc := fmt.Sprintf("/proc/%d/", pid)
	kib := map[string]*int64{"VmRSS": &u.Resident, "RssAnon": &u.RssAnon, "RssFile": &u.RssFile, "RssShmem": &u.RssShmem,
		"VmPTE": &u.PageTables, "Pss": &u.Pss}
	for _, name := range []string{"status", "smaps_rollup"} {
		text, err := os.ReadFile(proc + name)
		if err != nil {
			return u, err
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			if field, ok := kib[key]; ok {
				fmt.Sscan(value, field)
				*field <<= 10
			} else if key == "Threads" {
				fmt.Sscan(value, &u.Threads)
			}
		}
	}
	files, err := os.ReadDir(proc + "fd")
	u.OpenFiles = int64(len(files))
	return u, err
}

// diskBytes returns the bytes that a process and its children have read from disks.
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
