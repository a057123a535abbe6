package fs

import (
	"reflect"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// residentBuffers makes a server read requests into memory whose first pages are there already. It returns the server's pool of
// buffers. If a page is missing when a process that is being killed reads a request, the kernel cannot add the page, and ends that
// request with EIO; a request that it could copy is sent again, to the next worker. Replies need no such care: a handler
// has just written them.
//
// go-fuse keeps the pool to itself, and each garbage collection empties it.
func residentBuffers(server *fuse.Server) *sync.Pool {
	field := reflect.ValueOf(server).Elem().FieldByName("readPool")
	pool := reflect.NewAt(reflect.TypeFor[sync.Pool](), field.Addr().UnsafePointer()).Interface().(*sync.Pool)
	allocate := pool.New
	*pool = sync.Pool{New: func() any { // without the buffer of the first request
		buf := allocate().([]byte)
		// The first of these two pages holds all of a READ, the second the rest of a LOOKUP.
		buf[0], buf[4095] = 0, 0
		return buf
	}}
	return pool
}
