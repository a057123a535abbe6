package state

// maxCounted is the number of requests that CountOnce remembers. If more begin before a reply is
// sent, its request may be counted again.
const maxCounted = 1 << 14

// CountOnce calls count, which counts request id as succeeded or failed, unless the request has
// been counted before: it may fail after it has timed out, and a worker may die before it sends the
// reply. If a worker dies within CountOnce, the request may be counted twice, but it is never lost.
//
// The caller serializes calls for the same request.
func (s *Shared) CountOnce(id uint64, count func()) {
	id &^= Resent
	if last := &s.counted[id/2%maxCounted]; last.Load() != id {
		count()
		last.Store(id)
	}
}
