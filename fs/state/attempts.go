package state

// The kernel sets this bit of a request's id when it sends the request again, to a new worker.
const Resent = 1 << 63

// MaxAttempts is how many workers may end by themselves while a request that was sent again has no answer: the next one answers
// it with an error.
const MaxAttempts = 5

// Exhausted notes that request id begins, and says whether MaxAttempts workers have ended by themselves since it was first sent
// again. The caller serialises calls, as of EndAttempts.
func (s *Shared) Exhausted(id uint64) bool {
	if id&Resent == 0 {
		return false
	}
	var free *attempt
	for i := range s.attempts {
		a := &s.attempts[i]
		if a.id.Load() == id {
			a.worker.Store(s.Workers.Load())
			return s.Crashes.Load() >= a.crashes.Load()+MaxAttempts
		}
		// A request that the last worker did not get either has an answer, or no reader.
		if free == nil && (a.id.Load() == 0 || a.worker.Load()+1 < s.Workers.Load()) {
			free = a
		}
	}
	if free != nil {
		free.id.Store(0)
		free.crashes.Store(s.Crashes.Load())
		free.worker.Store(s.Workers.Load())
		free.id.Store(id)
	}
	return false
}

// EndAttempts notes that a request was answered.
func (s *Shared) EndAttempts(id uint64) {
	if id&Resent == 0 {
		return
	}
	for i := range s.attempts {
		s.attempts[i].id.CompareAndSwap(id, 0)
	}
}
