package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// readAheadKiB returns how far the kernel reads ahead for a file's file system, in KiB, or 0 if
// unknown.
func readAheadKiB(path string) int {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, name := range []string{
		"/sys/class/bdi/" + device + "/read_ahead_kb",
		"/sys/dev/block/" + device + "/queue/read_ahead_kb",
		"/sys/dev/block/" + device + "/../queue/read_ahead_kb", // for a partition
	} {
		text, _ := os.ReadFile(name)
		if n, _ := strconv.Atoi(strings.TrimSpace(string(text))); n > 0 {
			return n
		}
	}
	return 0
}
