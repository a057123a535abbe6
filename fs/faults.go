//go:build faults

package fs

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A program that is built with the tag faults dies where a test wants it to: in the environment, BATCHFS_FAULTS is a list of
// POINT:panic:N and POINT:kill:N, each one time in N on average. The points are those of cut.
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
	cut = func(point string) {
		f, ok := faults[point]
		if !ok || rand.IntN(f.once) > 0 {
			return
		}
		if f.how == "kill" {
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		panic("BATCHFS_FAULTS: " + point)
	}
}
