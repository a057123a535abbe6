package fs

import (
	"fmt"
	"reflect"
	"sync"
)

// maxWrite is the longest write in bytes. The mount is read-only, but go-fuse reads each request
// into a buffer that has room for such a write.
const maxWrite = 4096

// residentBuffers makes a *fuse.Server read requests into buffers whose first two pages are already
// in memory. If the process is being killed while it reads a request, the kernel cannot add a page
// to it and ends the request with EIO, but a request that fits into existing pages goes to the next
// worker. Buffers of replies are in memory, because a handler has just written them.
//
// residentBuffers returns the server's pool of buffers. The pool is a private field of the server
// in go-fuse v2.12.1, which has no public way to replace it. For a version that keeps its buffers
// elsewhere, residentBuffers returns an error.
func residentBuffers(server any) (*sync.Pool, error) {
	field := reflect.ValueOf(server).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return nil, fmt.Errorf("%T has no field readPool of type sync.Pool, unlike in go-fuse v2.12.1: package fs must be adapted to this version", server)
	}
	pool := (*sync.Pool)(field.Addr().UnsafePointer())
	allocate := pool.New
	if _, ok := allocate().([]byte); !ok {
		return nil, fmt.Errorf("readPool of %T does not hold []byte, unlike in go-fuse v2.12.1: package fs must be adapted to this version", server)
	}
	*pool = sync.Pool{New: func() any { // a new pool, without the buffer allocated above
		buf := allocate().([]byte)
		// A READ fits into the first page that this touches. A LOOKUP may need the second.
		buf[0], buf[4095] = 0, 0
		return buf
	}}
	return pool, nil
}
