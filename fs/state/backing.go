package state

import (
	"fmt"
	"math"
	"syscall"
)

// A Backing says who reads a split's tokens.bin at one version of its tokens. Above 0, the kernel does, from the token file that has
// this id on the connection. Below 0, the worker does, because of the errno -b, or of SeveralFiles. 0 stands for none chosen.
//
// The kernel refuses to open a file that is open already if the Backing is not the same. So one that was chosen stays.
type Backing int32

// SeveralFiles is the Backing of tokens that are not one file, byte for byte.
const SeveralFiles Backing = math.MinInt32

func (b Backing) String() string {
	switch errno := syscall.Errno(-b); {
	case b > 0:
		return "passed through: readers read the token file itself"
	case b == 0:
		return "not opened yet"
	case b == SeveralFiles:
		return "read by batchfs: it is not one token file as it stands"
	case errno == syscall.EPERM:
		return "read by batchfs: passing the token file through needs CAP_SYS_ADMIN, and no user namespace"
	case errno == syscall.ELOOP:
		return "read by batchfs: the token file's filesystem is stacked on others too high to pass it through"
	case errno == syscall.ENOTTY || errno == syscall.EOPNOTSUPP:
		return "read by batchfs: passing the token file through needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH"
	default:
		return fmt.Sprintf("read by batchfs: the kernel did not take the token file (%v)", errno)
	}
}

// packed is a Backing and the version that it is of, as Entry.backings has them.
func (b Backing) packed(v Version) uint64 { return uint64(uint32(v))<<32 | uint64(uint32(b)) }

func unpackBacking(word uint64) (v uint32, b Backing) { return uint32(word >> 32), Backing(word) }

// isBefore says whether version v is an earlier one than w, of which it has the low bits.
func isBefore(v uint32, w Version) bool { return int32(v-uint32(w)) < 0 }

// Backing is that of version v of the tokens of a split.
func (e *Entry) Backing(v Version) Backing {
	if of, b := unpackBacking(e.backings[v%2].Load()); of == uint32(v) {
		return b
	}
	return 0
}

// LastBacking is the Backing that was chosen last.
func (e *Entry) LastBacking() Backing {
	v, b := unpackBacking(e.backings[0].Load())
	if w, c := unpackBacking(e.backings[1].Load()); b == 0 || c != 0 && int32(w-v) > 0 {
		return c
	}
	return b
}

// ChooseBacking makes b the Backing of version v, unless another was chosen before. It returns the one that is chosen, or 0 if v is over.
func (e *Entry) ChooseBacking(v Version, b Backing) Backing {
	at := &e.backings[v%2]
	for {
		old := at.Load()
		of, chosen := unpackBacking(old)
		switch {
		case chosen != 0 && of == uint32(v):
			return chosen
		case chosen != 0 && !isBefore(of, v):
			return 0
		case at.CompareAndSwap(old, b.packed(v)):
			return b
		}
	}
}

// EndBackings forgets the Backings of versions before v. It calls end for their ids, and keeps those for which that returns false.
// A worker that is killed meanwhile leaves an id to its successor, which may end it a second time.
func (e *Entry) EndBackings(v Version, end func(id int32) bool) {
	for i := range e.backings {
		old := e.backings[i].Load()
		of, b := unpackBacking(old)
		if isBefore(of, v) && (b <= 0 || end(int32(b))) {
			e.backings[i].CompareAndSwap(old, 0)
		}
	}
}
