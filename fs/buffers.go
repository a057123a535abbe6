package fs

import (
	"fmt"
	"reflect"
	"sync"
)

// maxWrite is the longest write in bytes. Nobody writes, but go-fuse's buffers for requests have
// room for such a write.
const maxWrite = 4096

// residentBuffers makes a *fuse.Server read requests into buffers whose first two pages are in
// memory. While a process is being killed, the kernel cannot add a page to it, and ends a request
// that needs one with EIO; a request that it could copy goes to the next worker. Replies need no
// such care, because a handler has just written them.
//
// residentBuffers returns the pool of the buffers. It is a private field of the server in go-fuse
// v2.12.1, which has no public way to replace it. If a version keeps its buffers elsewhere,
// residentBuffers returns an error.
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
	*pool = sync.Pool{New: func() any { // drops the buffer allocated above
		buf := allocate().([]byte)
		// A READ fits into the first page, and a LOOKUP into both.
		buf[0], buf[4095] = 0, 0
		return buf
	}}
	return pool, nil
}
