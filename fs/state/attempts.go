package state

// Resent is the bit that the kernel sets in the id of a request that it sends again, to a new
// worker.
const Resent = 1 << 63

// MaxAttempts is the number of workers that may crash while a resent request has no reply. After
// that, the request fails.
const MaxAttempts = 5

// BeginAttempt records that request id begins, and reports whether MaxAttempts workers have crashed
// since it was first resent. Callers must serialize calls of BeginAttempt and EndAttempt.
func (s *Shared) BeginAttempt(id uint64) bool {
	if id&Resent == 0 {
		return false
	}
	a := s.attempt(id)
	if a.id.Load() != id { // overwrites any other request with this element
		a.crashes.Store(s.Crashes.Load())
		a.id.Store(id)
	}
	return s.Crashes.Load() >= a.crashes.Load()+MaxAttempts
}

// EndAttempt records that request id has its reply.
func (s *Shared) EndAttempt(id uint64) {
	if id&Resent != 0 {
		s.attempt(id).id.CompareAndSwap(id, 0)
	}
}

// attempt returns the element for request id. Ids are even.
func (s *Shared) attempt(id uint64) *attempt { return &s.attempts[id/2%maxAttempts] }
