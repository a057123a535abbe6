package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/guard"
)

// The cost methods do no I/O and create no Split, because the request is not admitted yet. If the
// Split does not exist yet, they return an upper bound.

func (t *tree) CostOfLookup(header *fuse.InHeader, name string) guard.Cost {
	dir := inode(header.NodeId)
	s := t.sequences.peek(dir.sequence())
	return t.cost(dir, isSettingsDir(dir, name) || s != nil && s.Current().Spec().FollowsChanges || s == nil && dir.sequence() > 0)
}

func (t *tree) CostOfReadDir(in *fuse.ReadIn) guard.Cost {
	dir := inode(in.NodeId)
	return t.cost(dir, t.sequences.peek(dir.sequence()) == nil && dir.sequence() > 0)
}

func (t *tree) CostOfGetAttr(in *fuse.GetAttrIn) guard.Cost { return t.cost(inode(in.NodeId), false) }

func (t *tree) CostOfOpen(in *fuse.OpenIn) guard.Cost {
	i := inode(in.NodeId)
	return t.cost(i, i.kind().isNext() || i.kind().isNumbered() || i.kind() == infoFile)
}

func (t *tree) CostOfRead(in *fuse.ReadIn) guard.Cost {
	i := inode(in.NodeId)
	c, s := t.cost(i, false), t.sequences.peek(i.sequence())
	if fillsPageCache(in) {
		c.Pages = guard.Pages{From: in.Offset, To: in.Offset + uint64(in.Size)}
	}
	switch k := i.kind(); {
	case !k.isNext() && !k.isNumbered(): // a text
	case s == nil:
		c.Rows, c.ReplyBytes = int64(in.Size), int(in.Size) // a row has at least one byte
	default:
		c.Rows, c.ReplyBytes = t.costOfBytes(i, s.Current(), in)
	}
	return c
}

// costOfBytes returns how many rows and bytes of b a READ gets.
func (t *tree) costOfBytes(i inode, b BatchList, in *fuse.ReadIn) (rows int64, bytes int) {
	if i.outdated(b) {
		return 0, 0
	}
	row := b.Spec().Batch.RowBytes(0)
	if i.kind().showsOneArray() {
		row = b.Spec().Batch.RowBytes(i.array())
	}
	n := t.replyLen(i, b, in)
	return (n + row - 1) / row, int(n)
}

// cost returns the cost of a request that reads no batch.
func (t *tree) cost(i inode, checksFiles bool) guard.Cost {
	c := guard.Cost{Split: t.sequences.splitOf(i.sequence())}
	if checksFiles {
		c.Rows = 1
	}
	return c
}
