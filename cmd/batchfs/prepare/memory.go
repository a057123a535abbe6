package prepare

import (
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	"batchfs/cmd/batchfs/terminal"
)

// pieceMemory is how many bytes encoding takes for each byte of a long piece; see
// [bpe.Encoder.Append].
const pieceMemory = 40

// memoryLimit returns how much memory this process may use, in bytes: the limit of its control
// groups or, if it is lower, GOMEMLIMIT. It returns math.MaxInt64 if there is none. Tests lower it.
var memoryLimit = sync.OnceValue(func() int64 {
	limit := debug.SetMemoryLimit(-1)
	groups, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		_, group, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, dir, _ := strings.Cut(group, ":")
		root, name := "/sys/fs/cgroup", "memory.max"
		switch {
		case slices.Contains(strings.Split(controllers, ","), "memory"): // version 1
			root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case controllers != "":
			continue
		}
		for dir = path.Join("/", dir); ; dir = path.Dir(dir) {
			raw, _ := os.ReadFile(filepath.Join(root, dir, name))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64); err == nil {
				limit = min(limit, n)
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
})

// largePieces makes encoders take turns if a piece needs much of the memory.
var largePieces sync.Mutex

// reserveMemory returns an error if the pieces of a text do not fit into memory, because the kernel
// would kill the process without saying which text it was. If encoding may need much of the memory,
// no other encoder does until release is called.
func (w *encodeWorker) reserveMemory(text []byte) (release func(), err error) {
	release = func() {}
	t, ok := w.encoding.tokenizer.(bpeTokenizer)
	limit := memoryLimit()
	if !ok || limit == math.MaxInt64 || pieceMemory*int64(len(text)) < limit/8 {
		return release, nil
	}
	longest := t.LongestPiece(text)
	needed := pieceMemory * int64(longest)
	if needed < limit/8 {
		return release, nil
	}
	largePieces.Lock()
	runtime.GC()
	var used runtime.MemStats
	runtime.ReadMemStats(&used)
	if inUse := int64(used.HeapAlloc); needed+inUse > limit {
		largePieces.Unlock()
		return nil, fmt.Errorf("has a word of %s, and encoding it takes about %s of memory in addition to %s in use, but the limit of "+
			"its control group, or GOMEMLIMIT, is %s: raise it, break the word, or leave it out", terminal.FormatBytes(int64(longest)), terminal.FormatBytes(needed), terminal.FormatBytes(inUse), terminal.FormatBytes(limit))
	}
	// Near the limit, the garbage collector should work harder.
	old := debug.SetMemoryLimit(limit - limit/10)
	return func() {
		debug.SetMemoryLimit(old)
		largePieces.Unlock()
	}, nil
}
