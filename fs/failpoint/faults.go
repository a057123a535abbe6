//go:build faults

package failpoint

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A program built with the tag faults dies where a test wants it to. The environment variable BATCHFS_FAULTS is a list of
// NAME:panic:N, NAME:kill:N and NAME:abort:N: at failpoint NAME it panics, is killed, or ends by itself, one time in N on average.
func init() {
	type fault struct {
		how  string
		once int
	}
	faults := map[string]fault{}
	for _, text := range strings.Fields(os.Getenv("BATCHFS_FAULTS")) {
		part := strings.Split(text, ":")
		n, err := strconv.Atoi(part[2])
		if err != nil {
			panic(err)
		}
		faults[part[0]] = fault{part[1], n}
	}
	Hit = func(point string) {
		f, ok := faults[point]
		if !ok || rand.IntN(f.once) > 0 {
			return
		}
		switch f.how {
		case "kill":
			unix.Kill(os.Getpid(), unix.SIGKILL)
		case "abort":
			unix.Kill(os.Getpid(), unix.SIGABRT)
			select {}
		}
		panic("BATCHFS_FAULTS: " + point)
	}
}
