package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"weak"

	"batchfs/cache/array"
	"batchfs/cache/blocks"
	"batchfs/cache/store"
)

// A Remote says from which store objects are read, and where their blocks are kept. Remotes that are equal share what they keep.
type Remote struct {
	Store  store.Options
	Blocks blocks.Options
}

// A remote is a Remote in use.
type remote struct {
	Remote
	blocks *blocks.Cache

	mu      sync.Mutex
	clients map[string]*store.Client // by scheme; guarded by mu, as objects
	objects []weak.Pointer[object]
}

var remotes struct {
	sync.Mutex
	all map[Remote]*remote
	log *slog.Logger
}

// SetRemoteLog says where it is logged what is wrong with a directory of blocks. It is called before anything is opened.
func SetRemoteLog(log *slog.Logger) {
	remotes.Lock()
	defer remotes.Unlock()
	remotes.log = log
}

func remoteLog() *slog.Logger {
	remotes.Lock()
	defer remotes.Unlock()
	if remotes.log == nil {
		return slog.Default()
	}
	return remotes.log
}

// open returns what this process has of r.
func (r Remote) open() *remote {
	remotes.Lock()
	defer remotes.Unlock()
	opened := remotes.all[r]
	if opened == nil {
		opened = &remote{Remote: r, blocks: blocks.New(r.Blocks, remoteLog), clients: map[string]*store.Client{}}
		if remotes.all == nil {
			remotes.all = map[Remote]*remote{}
		}
		remotes.all[r] = opened
		if r.Blocks.Dir != "" {
			go opened.closeRemoved()
		}
	}
	return opened
}

// closeRemoved closes blocks soon after they were removed from the directory, whose space they take until then.
func (r *remote) closeRemoved() {
	for range time.Tick(closeEvery) {
		r.mu.Lock()
		r.objects = slices.DeleteFunc(r.objects, func(p weak.Pointer[object]) bool { return p.Value() == nil })
		objects := slices.Clone(r.objects)
		r.mu.Unlock()
		some := false
		for _, p := range objects {
			if o := p.Value(); o != nil && o.closeRemoved() {
				some = true
			}
		}
		if some {
			runtime.GC() // which closes them
		}
	}
}

const closeEvery = 10 * time.Second

func (r *remote) client(scheme string) (*store.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clients[scheme] == nil {
		client, err := store.New(scheme, r.Store)
		if err != nil {
			return nil, err
		}
		r.clients[scheme] = client
	}
	return r.clients[scheme], nil
}

// opened are all remotes in use.
func openedRemotes() (all []*remote) {
	remotes.Lock()
	defer remotes.Unlock()
	for _, r := range remotes.all {
		all = append(all, r)
	}
	return all
}

// Flush returns when what was fetched of objects lies in their directory, or cannot, and lets go of the memory that it took.
func Flush() {
	for _, r := range openedRemotes() {
		r.blocks.Flush()
	}
}

// RemoteUse is what this process has read of objects.
type RemoteUse struct {
	Requests, Bytes int64 // sent to stores, and fetched from them
	Hits, Waits     int64 // reads of blocks that were there, and of blocks that were not
	Waited          time.Duration
	Unkept          int64 // blocks that did not go to the directory
	Memory          int64 // bytes
}

// RemoteUseNow returns what this process has read so far. ok is false if it reads no objects.
func RemoteUseNow() (u RemoteUse, ok bool) {
	for _, r := range openedRemotes() {
		ok = true
		c := &r.blocks.Counts
		u.Hits, u.Waits, u.Waited, u.Unkept = u.Hits+c.Hits.Load(), u.Waits+c.Waits.Load(), u.Waited+time.Duration(c.Waited.Load()), u.Unkept+c.Full.Load()
		u.Memory += r.blocks.MemoryBytes()
		r.mu.Lock()
		for _, client := range r.clients {
			u.Requests, u.Bytes = u.Requests+client.Requests.Load(), u.Bytes+client.Bytes.Load()
		}
		r.mu.Unlock()
	}
	return u, ok
}

// IsRemote reports whether a name is that of an object, not the path of a file.
func IsRemote(name string) bool {
	_, ok := store.Parse(name)
	return ok
}

// resolve returns the names of the objects that a pattern names. Those of a glob are in alphabetical order.
func (r *remote) resolve(pattern string) (names []string, err error) {
	o, _ := store.Parse(pattern)
	switch {
	case o.Bucket == "":
		return nil, fmt.Errorf("must name a bucket, as in %s://bucket/train.bin (got %q)", o.Scheme, pattern)
	case o.Key == "", strings.HasSuffix(o.Key, "/"):
		return nil, fmt.Errorf("must name objects, as in %s/*.bin (got %q)", strings.TrimSuffix(pattern, "/"), pattern)
	}
	prefix := strings.IndexAny(o.Key, `*?[\`)
	if prefix < 0 {
		return []string{pattern}, nil
	}
	if _, err := path.Match(o.Key, ""); err != nil {
		return nil, fmt.Errorf("must be a URL or a glob: %w (got %q)", err, pattern)
	}
	client, err := r.client(o.Scheme)
	if err != nil {
		return nil, err
	}
	keys, err := client.List(context.Background(), o.Scheme, o.Bucket, o.Key[:prefix])
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if ok, _ := path.Match(o.Key, key); ok {
			names = append(names, store.Object{Scheme: o.Scheme, Bucket: o.Bucket, Key: key}.Name())
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("must name objects that exist (got %q, which matches none)", pattern)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// A Turn says for which batch of which Stream something is needed.
type (
	Turn   = blocks.Turn
	Stream = blocks.Stream
)

// An object is a Blob in a store. Its blocks are read as the files are that they are kept in.
type object struct {
	name   string
	id     Identity
	sample Sample
	access Access
	drop   bool
	client *store.Client
	blocks *blocks.Object
	counts *blocks.Counts
	files  []atomic.Pointer[file] // of each block, its file, once it was verified

	changed atomic.Pointer[ChangedError] // nil, or how: the store has another object there
	looked  atomic.Int64                 // when Check last had a look whether it still has, as uptime says
}

// newObject returns the object that had an identity when it was opened. It sends nothing.
func (r *remote) newObject(name string, id Identity, sample Sample, access Access, drop bool) (*object, error) {
	at, _ := store.Parse(name)
	at.ETag, at.Size = id.ETag, id.Size
	client, err := r.client(at.Scheme)
	if err != nil {
		return nil, err
	}
	o := &object{name: name, id: id, sample: sample, access: access, drop: drop, client: client, counts: &r.blocks.Counts}
	o.blocks = r.blocks.Object(client.Endpoint(), at, client.ReadRange)
	o.files = make([]atomic.Pointer[file], o.blocks.Blocks())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects = append(r.objects, weak.Make(o))
	return o, nil
}

func (o *object) closeRemoved() (some bool) {
	for i := range o.files {
		if f := o.files[i].Load(); f != nil && f.Check() != nil && o.files[i].CompareAndSwap(f, nil) {
			o.blocks.Forget(int64(i))
			some = true
		}
	}
	return some
}

func (o *object) Path() string { return o.name }

func (o *object) Identity() Identity { return o.id }

func (o *object) Sample() Sample { return o.sample }

// Check sends nothing while the store is not known to have another object: every read from the store compares the ETag.
func (o *object) Check() error {
	changed := o.changed.Load()
	if changed == nil {
		return nil
	}
	now, last := int64(uptime()), o.looked.Load()
	if now-last > int64(lookEvery) && o.looked.CompareAndSwap(last, now) {
		go o.look()
	}
	return changed
}

// lookEvery is how often the store is asked whether an object is still what it was: one that has been replaced, or of the objects of an array
// that are followed, one after the other.
const lookEvery = time.Second

// look asks the store whether it still has the object.
func (o *object) look() {
	found, err := o.client.Stat(context.Background(), o.blocks.Object)
	switch {
	case err != nil:
	case found == o.blocks.Object:
		o.changed.Store(nil)
	default:
		o.changed.CompareAndSwap(nil, &ChangedError{o.name, "the store has another object there"})
	}
}

func (o *object) Release() {
	for i := range o.files {
		if f := o.files[i].Load(); f != nil {
			f.Release()
		}
	}
}

func (o *object) Want(ranges []Range, t Turn) (room bool) {
	size := o.blocks.BlockBytes()
	for _, r := range ranges {
		for i := range blocks.Holding(r.From, r.To, size) {
			if o.files[i].Load() == nil && !o.blocks.Want(i, t) {
				return false
			}
		}
	}
	return true
}

// Read reads block after block, so that none is fetched twice, however few fit in memory.
func (o *object) Read(ranges []Range, visit func(int, []byte) error) error {
	if changed := o.changed.Load(); changed != nil {
		return changed
	}
	list := rangeLists.Get().(*[]Range)
	defer rangeLists.Put(list)
	parts, size := (*list)[:0], o.blocks.BlockBytes() // parts: of ranges, each in one block
	for i, r := range ranges {
		for block := range blocks.Holding(r.From, r.To, size) {
			parts = append(parts, Range{max(r.From, block*size), min(r.To, (block+1)*size), i})
		}
	}
	*list = parts
	slices.SortFunc(parts, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	o.Want(parts, Turn{}) // all at once, as far as there is room
	var block int64
	var whole map[int][]byte // of ranges in several blocks, what was read
	read := func(i int, raw []byte) error {
		r := ranges[i]
		if int64(len(raw)) == r.To-r.From {
			return visit(r.Index, raw)
		}
		if whole == nil {
			whole = map[int][]byte{}
		}
		if whole[i] == nil {
			whole[i] = make([]byte, r.To-r.From)
		}
		copy(whole[i][max(block*size-r.From, 0):], raw)
		if r.To > (block+1)*size {
			return nil
		}
		return visit(r.Index, whole[i])
	}
	for len(parts) > 0 {
		n := 1
		for block = parts[0].From / size; n < len(parts) && parts[n].From/size == block; n++ {
		}
		if err := o.readBlock(block, parts[:n], read); err != nil {
			return err
		}
		parts = parts[n:]
	}
	return nil
}

// readBlock reads ranges that lie in one block. If its file is not what it was, the block is read anew, also what was visited already.
func (o *object) readBlock(block int64, ranges []Range, visit func(int, []byte) error) error {
	first := block * o.blocks.BlockBytes()
	list := rangeLists.Get().(*[]Range)
	defer rangeLists.Put(list)
	within := (*list)[:0]
	for _, r := range ranges {
		within = append(within, Range{r.From - first, r.To - first, r.Index})
	}
	*list = within
	for try := 1; ; try++ {
		if f := o.files[block].Load(); f != nil {
			var refused error
			err := f.Read(within, func(i int, raw []byte) error {
				refused = visit(i, raw)
				return refused
			})
			if err == nil || errors.Is(err, refused) {
				o.counts.Hits.Add(1)
				return err
			}
			o.files[block].CompareAndSwap(f, nil)
			o.blocks.Forget(block)
			if try == maxTries {
				return err
			}
		}
		b, err := o.blocks.Get(block)
		if err != nil {
			return o.explain(err)
		}
		if b.File == "" {
			defer b.Release()
			for _, r := range within {
				if err := visit(r.Index, b.Bytes[r.From:r.To]); err != nil {
					return err
				}
			}
			return nil
		}
		if err := o.keep(block, b); err != nil {
			return err
		}
	}
}

// A file of a block that is another one each time it is read is of no use.
const maxTries = 5

// keep makes the file of a block the one that it is read from.
func (o *object) keep(block int64, b blocks.Block) error {
	// A block is small, and there are many: to map one, or to open it, for each row would cost more than the row.
	access := Pread
	if o.access == Map {
		access = Map
	}
	id := Identity{Dev: b.Stat.Dev, Ino: b.Stat.Ino, Size: b.Stat.Size, Sec: b.Stat.Sec, Nsec: b.Stat.Nsec}
	f, err := newFile(b.File, id, Sample{}, access, o.drop)
	if err == nil {
		f.staysOpen = true
		o.files[block].Store(f)
	}
	return err
}

// explain notes that the store has another object.
func (o *object) explain(err error) error {
	if !errors.Is(err, store.ErrChanged) {
		return err
	}
	changed := &ChangedError{o.name, strings.TrimPrefix(err.Error(), o.name+": ")}
	o.changed.Store(changed)
	return changed
}

// openObject looks at the object with a name.
func (r *remote) openObject(name string) (id Identity, _ content, err error) {
	at, _ := store.Parse(name)
	client, err := r.client(at.Scheme)
	if err != nil {
		return id, nil, err
	}
	if at, err = client.Stat(context.Background(), at); err != nil {
		return id, nil, err
	}
	if err := r.blocks.Check(); err != nil {
		return id, nil, err
	}
	return Identity{Size: at.Size, ETag: at.ETag}, &objectContent{client: client, at: at, parts: map[int64][]byte{}}, nil
}

// An objectContent is an object that is being opened. Its first bytes are read once, because formats look at them again and again, and are
// kept, as are samples.
type objectContent struct {
	client *store.Client
	at     store.Object
	head   []byte
	parts  map[int64][]byte // of fetch, by their first byte
}

const headBytes = 64 << 10

func (c *objectContent) Close() error { return nil }

func (c *objectContent) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > c.at.Size {
		return 0, syscall.EINVAL // nobody reads beyond the size
	}
	if off+int64(len(b)) <= headBytes {
		if c.head == nil {
			head := make([]byte, min(headBytes, c.at.Size))
			if err := c.read(head, 0); err != nil {
				return 0, err
			}
			c.head = head
		}
		return copy(b, c.head[off:]), nil
	}
	if part := c.parts[off]; len(part) >= len(b) {
		return copy(b, part), nil
	}
	return len(b), c.read(b, off)
}

func (c *objectContent) read(b []byte, off int64) error {
	if len(b) == 0 {
		return nil
	}
	return c.client.ReadRange(context.Background(), c.at, off, b)
}

// fetch reads several parts of so many bytes at once, which ReadAt returns then.
func (c *objectContent) fetch(offs []int64, length int64) error {
	parts, errs := make([][]byte, len(offs)), make([]error, len(offs))
	var all sync.WaitGroup
	for i, off := range offs {
		if off+length <= headBytes {
			continue
		}
		all.Go(func() {
			parts[i] = make([]byte, length)
			errs[i] = c.read(parts[i], off)
		})
	}
	all.Wait()
	for i, off := range offs {
		c.parts[off] = parts[i]
	}
	return errors.Join(errs...)
}

// A Stretch is elements of an array, from a position to before another.
type Stretch struct {
	Array    *Array
	From, To int64
}

// parts are the bytes of objects that hold a stretch, and those of the indexes of their documents.
func (s Stretch) parts() (elements, indexes []blocks.Part) {
	a := s.Array
	for of, r := range a.parts(s.From*a.width, s.To*a.width) {
		if o, ok := of.blob.(*object); ok {
			r = a.bytes(of, r)
			elements = append(elements, blocks.Part{Object: o.blocks, From: r.From, To: r.To})
		}
		if of.index == nil {
			continue
		}
		if o, ok := of.index.blob.(*object); ok {
			indexes = append(indexes, blocks.Part{Object: o.blocks, To: o.id.Size})
		}
	}
	return elements, indexes
}

// A Share is the blocks that an epoch of a reader needs.
type Share = blocks.Share

// NewShare is the share that holds stretches, or nil where no block of them is kept. name says who reads it.
func NewShare(name string, stretches []Stretch) *Share {
	var parts []blocks.Part
	for _, s := range stretches {
		elements, indexes := s.parts()
		parts = append(parts, slices.Concat(elements, indexes)...)
	}
	return blocks.NewShare(name, parts)
}

// Fetch brings a share, which holds stretches, into the directory of blocks, until there is no more room: each block once, in the order in which
// windows visits them, until it is told false, and then the rest. It calls progress with the bytes of each block. It ends with the error of ctx
// when that is cancelled.
func Fetch(ctx context.Context, share *Share, stretches []Stretch, windows func(visit func(*Array, array.Window) bool), progress func(n int64)) error {
	share.Fill()
	f := &fetch{ctx: ctx, share: share, progress: progress, seen: map[wantedBlock]bool{}}
	for _, s := range stretches {
		_, indexes := s.parts()
		f.add(indexes...)
	}
	windows(func(a *Array, w array.Window) bool {
		for s, r := range a.inFiles(w) {
			if o, ok := s.blob.(*object); ok {
				f.add(blocks.Part{Object: o.blocks, From: r.From, To: r.To})
			}
		}
		return f.err == nil && int64(len(f.seen)) < share.Blocks
	})
	for _, s := range stretches {
		elements, _ := s.parts()
		f.add(elements...)
	}
	for len(f.wanted) > 0 && f.err == nil {
		f.next()
	}
	return f.err
}

// A fetch is one Fetch.
type fetch struct {
	ctx      context.Context
	share    *Share
	progress func(n int64)
	seen     map[wantedBlock]bool
	wanted   []wantedBlock // that are being fetched, in order
	err      error
}

type wantedBlock struct {
	of    *blocks.Object
	index int64
}

// add fetches the blocks of parts that it has not seen.
func (f *fetch) add(parts ...blocks.Part) {
	for _, p := range parts {
		for i := range blocks.Holding(p.From, p.To, p.Object.BlockBytes()) {
			b := wantedBlock{p.Object, i}
			if f.seen[b] || f.err != nil {
				continue
			}
			f.seen[b] = true
			for len(f.wanted) > 0 && !b.of.Want(i, Turn{}) {
				f.next()
			}
			f.wanted = append(f.wanted, b)
		}
	}
}

// next waits for the first of the blocks that are being fetched.
func (f *fetch) next() {
	b := f.wanted[0]
	f.wanted = f.wanted[1:]
	got, err := b.of.Get(b.index)
	if err == nil {
		got.Release()
		f.progress(min(b.of.BlockBytes(), b.of.Size-b.index*b.of.BlockBytes()))
		f.share.Read()
		err = context.Cause(f.ctx)
	}
	if use, _ := RemoteUseNow(); use.Unkept > 0 {
		err = cmp.Or(err, ErrNoRoom)
	}
	f.err = cmp.Or(f.err, err)
}

// ErrNoRoom says that the directory of blocks is full, or fails.
var ErrNoRoom = errors.New("no more room")
