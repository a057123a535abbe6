package fs

import (
	"fmt"
	"reflect"
	"sync"
)

// maxWrite is the longest write in bytes. Nobody writes here, but go-fuse reads each request into a
// buffer with room for such a write.
const maxWrite = 4096

// residentBuffers makes a *fuse.Server read requests into buffers whose first pages are resident. If
// a page is missing when a process that is being killed reads a request, the kernel ends the request
// with EIO; a request that it could copy goes to the next worker. Replies need no such care, because
// a handler has just written them.
//
// residentBuffers returns the pool of these buffers, which each garbage collection empties. It is a
// private field of the server in go-fuse v2.12.1, which has no public way to replace it. With a
// version that keeps its buffers elsewhere, residentBuffers fails.
func residentBuffers(server any) (*sync.Pool, error) {
	field := reflect.ValueOf(server).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return nil, fmt.Errorf("%T has no sync.Pool readPool, as it has in go-fuse v2.12.1: package fs must be adapted to this version", server)
	}
	pool := (*sync.Pool)(field.Addr().UnsafePointer())
	allocate := pool.New
	if _, ok := allocate().([]byte); !ok {
		return nil, fmt.Errorf("the pool of %T has no []byte, as it has in go-fuse v2.12.1: package fs must be adapted to this version", server)
	}
	*pool = sync.Pool{New: func() any { // without the buffer of the first request
		buf := allocate().([]byte)
		// The first of these two pages holds all of a READ, the second the rest of a LOOKUP.
		buf[0], buf[4095] = 0, 0
		return buf
	}}
	return pool, nil
}
