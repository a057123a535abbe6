package fs

import (
	"fmt"
	"reflect"
	"sync"
)

// maxWrite is the longest write, in bytes. Nobody writes, but go-fuse's request buffers have room
// for one.
const maxWrite = 4096

// residentBuffers makes a *fuse.Server read requests into buffers whose first 4096 bytes are in
// memory. While a process is being killed, the kernel cannot add pages to it. If delivering a
// request needs a page, the request fails with EIO instead of going to the next worker. Replies
// need no such care, because a handler has just written them.
//
// The result is the pool of the buffers, a private field of the server in go-fuse v2.12.1, which
// has no public way to replace it.
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
	*pool = sync.Pool{New: func() any {
		buf := allocate().([]byte)
		// A READ or LOOKUP fits into 4096 bytes, in up to two pages.
		buf[0], buf[4095] = 0, 0
		return buf
	}}
	return pool, nil
}
