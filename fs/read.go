package fs

import (
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/internal/process"
)

// The guard calls CostOfRead, HandleRead and, if the request succeeds in time, Succeeded. A READ of
// batches takes three steps: [tree.locate] finds the bytes, [batchContent.getBytes] gets them, and
// [tree.account] counts them.

// A readRequest is a READ.
type readRequest struct {
	*fuse.ReadIn
	inode  inode
	waited time.Duration   // for admission
	buf    []byte          // space for the bytes requested
	cancel <-chan struct{} // closed when the request is abandoned
}

// fillsPageCache reports whether a READ is for the page cache. Any other READ has a lock owner.
func fillsPageCache(in *fuse.ReadIn) bool { return in.ReadFlags&fuse.READ_LOCKOWNER == 0 }

func (t *tree) HandleRead(
	cancel <-chan struct{}, waited time.Duration, in *fuse.ReadIn, buf []byte,
) (fuse.ReadResult, fuse.Status) {
	i := inode(in.NodeId)
	k := i.kind()
	if (k.isNext() || k.isText()) && fillsPageCache(in) {
		if k.isNext() {
			t.logUnmappable(i, in.Pid)
		}
		return nil, fuse.EINVAL
	}
	reply, err := k.entry().content.read(t, readRequest{in, i, waited, buf, cancel})
	if err == nil {
		return reply, fuse.OK
	}
	if k.isNext() {
		t.shared.EndFailedRead(in.Fh)
	}
	return nil, t.FailRequest(in.Unique, in.NodeId, err)
}

// logUnmappable logs which program tried to map next*, because the SIGBUS that it gets has no
// explanation.
func (t *tree) logUnmappable(i inode, pid uint32) {
	comm, _ := os.ReadFile(process.Dir(int(pid)) + "/comm")
	t.log.tryLog(slog.LevelWarn, "a program mapped a file that cannot be mapped, and gets SIGBUS, or called sendfile with it, and gets EINVAL: "+
		"it should read the file, or map batch/<k> or batches.npy instead",
		"file", i.kind().entry().name, "pid", pid, "program", strings.TrimSpace(string(comm)))
}
