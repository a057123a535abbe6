package state

// The kernel sets this bit of a request's id when it sends the request again, to a new worker.
const Resent = 1 << 63

// MaxAttempts is how many workers may end by themselves while a request that was sent again has no answer: the next one answers
// it with an error.
const MaxAttempts = 5

// BeginAttempt records that request id begins, and reports whether MaxAttempts workers have ended by themselves since it was first sent
// again. The caller serialises calls, as of EndAttempt.
func (s *Shared) BeginAttempt(id uint64) bool {
	if id&Resent == 0 {
		return false
	}
	a := s.attempt(id)
	if a.id.Load() != id { // of two requests that share it, the later one counts
		a.crashes.Store(s.Crashes.Load())
		a.id.Store(id)
	}
	return s.Crashes.Load() >= a.crashes.Load()+MaxAttempts
}

// EndAttempt records that a request was answered.
func (s *Shared) EndAttempt(id uint64) {
	if id&Resent != 0 {
		s.attempt(id).id.CompareAndSwap(id, 0)
	}
}

func (s *Shared) attempt(id uint64) *attempt { return &s.attempts[id/2%maxAttempts] } // ids are even
