//go:build faults

package failpoint

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// init makes failpoints fail as the environment variable BATCHFS_FAULTS says. It is a list of
// NAME:panic:N, NAME:kill:N and NAME:abort:N: at failpoint NAME, the process panics, is killed, or
// aborts, one time in N on average.
func init() {
	Hit = func(point string) {
		for _, fault := range strings.Fields(os.Getenv("BATCHFS_FAULTS")) {
			part := strings.Split(fault, ":")
			if n, _ := strconv.Atoi(part[2]); part[0] != point || rand.IntN(n) > 0 {
				continue
			}
			switch part[1] {
			case "kill":
				unix.Kill(os.Getpid(), unix.SIGKILL)
			case "abort":
				unix.Kill(os.Getpid(), unix.SIGABRT)
				select {}
			}
			panic("BATCHFS_FAULTS: " + point)
		}
	}
}
