package processes

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestDiskSpace(t *testing.T) {
	free, size := diskSpace(&unix.Statfs_t{Bsize: 4096, Frsize: 512, Blocks: 1000, Bfree: 500, Bavail: 300})
	if free != 300*512 || size != 1000*512 {
		t.Errorf("%d of %d bytes are free, want %d of %d", free, size, 300*512, 1000*512)
	}
}
