package input

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"batchfs/cache/blob"
	"batchfs/cache/store"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/prepare/units"
)

// remoteTimeout is the timeout of clients. A task waits longer than a reader of a mount would.
const remoteTimeout = 4 * time.Minute

// Stores opens the stores that s3:// and gs:// names are in. It belongs to one goroutine.
type Stores struct {
	Ctx     context.Context
	Flags   config.Flags
	clients map[string]*store.Client  // by scheme
	listed  map[string][]store.Object // by URL of the prefix
}

func (s *Stores) client(scheme string) (*store.Client, error) {
	if c := s.clients[scheme]; c != nil {
		return c, nil
	}
	table, err := s.Flags.LoadStore()
	if err != nil {
		return nil, err
	}
	c, err := store.New(scheme, table.Options(remoteTimeout))
	if err != nil {
		return nil, err
	}
	if s.clients == nil {
		s.clients, s.listed = map[string]*store.Client{}, map[string][]store.Object{}
	}
	s.clients[scheme] = c
	return c, nil
}

// Output returns the directory or prefix that a file is in, and its name there.
func (s *Stores) Output(file string) (units.Output, string, error) {
	dir, name := path.Split(file)
	out, err := s.OutputAt(dir)
	return out, name, err
}

// OutputAt returns the output with this path or URL.
func (s *Stores) OutputAt(dir string) (units.Output, error) {
	o, ok := store.Parse(dir)
	switch {
	case !ok && blob.IsURL(dir):
		return nil, fmt.Errorf("%s: is not in a store that speaks S3, whose URLs begin with s3:// or gs://: use one of these, or a local directory", dir)
	case !ok:
		return units.Folder(filepath.Clean(ResolveParents(dir))), nil
	}
	if o.Bucket == "" {
		return nil, fmt.Errorf("%s: name a bucket, as in %s://bucket/tokens", dir, o.Scheme)
	}
	c, err := s.client(o.Scheme)
	if err != nil {
		return nil, err
	}
	if o.Key != "" {
		o.Key = strings.TrimSuffix(o.Key, "/") + "/"
	}
	return &units.Bucket{Client: c, At: o}, nil
}

// A remoteFile is an object that is an input.
type remoteFile struct {
	ctx    context.Context
	client *store.Client
	store.Object
}

// Planned returns an input of a plan file. If it is a local file, call Stat next.
func (s *Stores) Planned(in units.Input) (*File, error) {
	to := &File{Path: in.Name, Format: Format(in.Format), Val: in.Val}
	if o, ok := in.Object(); ok {
		return to, s.find(to, o)
	}
	return to, nil
}

// find makes an object the content of an input.
func (s *Stores) find(in *File, o store.Object) error {
	c, err := s.client(o.Scheme)
	in.Info, in.remote = remoteInfo{o}, &remoteFile{s.Ctx, c, o}
	return err
}

func (f *remoteFile) open() *store.Stream { return f.client.Open(f.ctx, f.Object) }

// A remoteInfo describes an object like a file.
type remoteInfo struct{ store.Object }

func (i remoteInfo) Name() string       { return i.Object.Name() }
func (i remoteInfo) Size() int64        { return i.Object.Size }
func (i remoteInfo) Mode() fs.FileMode  { return 0 }
func (i remoteInfo) ModTime() time.Time { return time.Time{} }
func (i remoteInfo) IsDir() bool        { return false }
func (i remoteInfo) Sys() any           { return nil }

// objects returns the objects that a URL names, sorted: one object, all below a prefix, or those
// that a glob matches. Each prefix is listed once. Prefixes and globs skip names that begin with
// "." and the empty objects that stand for folders.
func (s *Stores) objects(url string, include []string) (found []store.Object, err error) {
	o, _ := store.Parse(url)
	if o.Bucket == "" {
		return nil, fmt.Errorf("%s: name a bucket, as in %s://bucket/texts", url, o.Scheme)
	}
	fixed := len(o.Key)
	if i := strings.IndexAny(o.Key, `*?[{\`); i >= 0 {
		fixed = i
	}
	all, err := s.list(o, o.Key[:fixed])
	if err != nil {
		return nil, err
	}
	isFolder := func(o store.Object) bool { return o.Size == 0 && strings.HasSuffix(o.Key, "/") }
	// An existing name is not a pattern, even if it contains * or [.
	if i := slices.IndexFunc(all, func(each store.Object) bool { return each.Key == o.Key && !isFolder(each) }); i >= 0 {
		return all[i : i+1 : i+1], nil
	}
	isGlob := fixed < len(o.Key)
	if isGlob && !doublestar.ValidatePattern(o.Key) {
		return nil, fmt.Errorf("%s: %w", url, doublestar.ErrBadPattern)
	}
	dir := strings.TrimSuffix(o.Key, "/") + "/"
	if o.Key == "" {
		dir = ""
	}
	below := 0
	for _, each := range all {
		switch {
		case isFolder(each):
		case isGlob && (doublestar.MatchUnvalidated(o.Key, each.Key) && !hasHiddenName(each.Key[strings.LastIndexByte(o.Key[:fixed], '/')+1:])):
			found = append(found, each)
		case !isGlob && strings.HasPrefix(each.Key, dir) && !hasHiddenName(each.Key[len(dir):]):
			below++
			if included(each.Key[len(dir):], include) {
				found = append(found, each)
			}
		}
	}
	switch {
	case len(found) == 0 && below > 0:
		return nil, fmt.Errorf("%s: no object below this prefix matches --include %s", url, strings.Join(include, " --include "))
	case len(found) == 0:
		return nil, fmt.Errorf("%s: matches no object: check the name, and store.endpoint", url)
	}
	slices.SortFunc(found, func(a, b store.Object) int { return strings.Compare(a.Key, b.Key) })
	return found, nil
}

// argumentObjects is like argumentFiles, and records the objects by their URLs.
func (s *Stores) argumentObjects(arg string, include []string, objects map[string]store.Object) (paths, leftOut []string, err error) {
	found, err := s.objects(arg, include)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range found {
		paths = append(paths, o.Name())
		objects[o.Name()] = o
	}
	paths, leftOut = leaveOutSideFiles(paths, include)
	return paths, leftOut, nil
}

func hasHiddenName(key string) bool {
	return strings.HasPrefix(key, ".") || strings.Contains(key, "/.")
}

func (s *Stores) list(o store.Object, prefix string) ([]store.Object, error) {
	c, err := s.client(o.Scheme)
	if err != nil {
		return nil, err
	}
	o.Key = prefix
	all, ok := s.listed[o.Name()]
	if !ok {
		if all, err = c.List(s.Ctx, o.Scheme, o.Bucket, prefix); err != nil {
			return nil, err
		}
		s.listed[o.Name()] = all
	}
	return all, nil
}

// A remoteReaderAt reads an object at any offset, through blocks of which it keeps a few. It is
// safe for concurrent use.
type remoteReaderAt struct {
	file *remoteFile

	mu     sync.Mutex // guards blocks
	blocks []remoteBlock
}

type remoteBlock struct {
	number int64
	data   []byte
}

const (
	remoteBlockSize = 4 << 20 // bytes
	remoteBlocks    = 16
)

// ReadAt implements [io.ReaderAt].
func (r *remoteReaderAt) ReadAt(buf []byte, off int64) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n < len(buf) && off+int64(n) < r.file.Size {
		at := off + int64(n)
		block, err := r.block(at / remoteBlockSize)
		if err != nil {
			return n, err
		}
		n += copy(buf[n:], block[at%remoteBlockSize:])
	}
	if n < len(buf) {
		return n, io.EOF
	}
	return n, nil
}

// block returns a block, and makes it the last to be dropped.
func (r *remoteReaderAt) block(number int64) ([]byte, error) {
	i := slices.IndexFunc(r.blocks, func(b remoteBlock) bool { return b.number == number })
	if i < 0 {
		begin := number * remoteBlockSize
		data := make([]byte, min(remoteBlockSize, r.file.Size-begin))
		if err := r.file.client.ReadRange(r.file.ctx, r.file.Object, begin, data); err != nil {
			return nil, err
		}
		if len(r.blocks) == remoteBlocks {
			r.blocks = slices.Delete(r.blocks, 0, 1)
		}
		i, r.blocks = len(r.blocks), append(r.blocks, remoteBlock{number, data})
	}
	b := r.blocks[i]
	r.blocks = append(slices.Delete(r.blocks, i, i+1), b)
	return b.data, nil
}
