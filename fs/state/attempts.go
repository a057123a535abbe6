package state

// The kernel sets this bit of a request's id when it sends the request again, to a new worker.
const Resent = 1 << 63

// MaxAttempts is how many workers may end with a request unanswered: the next one answers it with an error.
const MaxAttempts = 5

// Exhausted notes that request id begins and says whether too many workers have ended with it unanswered. The caller
// serialises calls, as of EndAttempts.
func (s *Shared) Exhausted(id uint64) bool {
	if id&Resent == 0 {
		return false
	}
	id &^= Resent
	a := s.findAttempt(id)
	if a == nil {
		return false
	}
	if a.id.Load() != id {
		a.id.Store(0)
		a.times.Store(0)
		a.id.Store(id)
	}
	a.worker.Store(s.Workers.Load())
	return a.times.Add(1) >= MaxAttempts
}

// EndAttempts notes that a request was answered.
func (s *Shared) EndAttempts(id uint64) {
	if id&Resent == 0 {
		return
	}
	id &^= Resent
	if a := s.findAttempt(id); a != nil && a.id.Load() == id {
		a.id.Store(0)
	}
}

// findAttempt returns the counter of a request, or else one to count it with: a free one, or the one that an earlier worker
// counted last, whose request was probably answered. A counter that this worker used is never taken from its request: with
// all of them in use it returns nil.
func (s *Shared) findAttempt(id uint64) *attempt {
	var oldest *attempt
	for i := range s.attempts {
		a := &s.attempts[i]
		switch {
		case a.id.Load() == id:
			return a
		case a.id.Load() == 0:
			if oldest == nil || oldest.id.Load() != 0 {
				oldest = a
			}
		case oldest == nil || oldest.id.Load() != 0 && a.worker.Load() < oldest.worker.Load():
			oldest = a
		}
	}
	if oldest.id.Load() != 0 && oldest.worker.Load() == s.Workers.Load() {
		return nil
	}
	return oldest
}
