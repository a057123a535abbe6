package state

// The kernel sets this bit of a request's id when it sends the request again, to a new worker.
const Resent = 1 << 63

// MaxAttempts is how many workers may end because of a request: the next one answers it with an error.
const MaxAttempts = 5

// So many workers may end with a request unanswered, whatever they ended of. Then it is a suspect: from now on it counts only if
// a worker ends that has begun to answer it. So a request that ends workers does not take others with it.
const maxUnanswered = 3

// Attempt notes that request id begins. It says whether the request is a suspect: Suspect must be called before it is answered. It
// is exhausted when it has ended too many workers. The caller serialises calls, as of the functions below.
func (s *Shared) Attempt(id uint64) (suspect, exhausted bool) {
	if id&Resent == 0 {
		return false, false
	}
	a := s.attempt(id &^ Resent)
	if a == nil {
		return false, false
	}
	a.worker.Store(s.Workers.Load())
	if a.times.Load() < maxUnanswered && s.blamed.Load() != s.Workers.Load() {
		a.times.Add(1)
	}
	return a.times.Load() >= maxUnanswered, a.times.Load() >= MaxAttempts
}

// Suspect notes that a request begins to be answered that may end this worker: if the worker ends before Clear, it is the one to
// blame, and until EndAttempts it is one of those.
func (s *Shared) Suspect(id uint64) {
	id &^= Resent
	a := s.attempt(id)
	if a == nil { // all counters are in use
		for i := range s.attempts {
			if other := &s.attempts[i]; other.suspected.Load() == 0 && (a == nil || other.times.Load() < a.times.Load()) {
				a = other
			}
		}
		if a == nil {
			return
		}
		s.begin(a, id)
	}
	a.suspected.Store(1)
	s.suspect.Store(id)
}

// Clear notes that a request has not ended this worker yet, and that another may be suspected.
func (s *Shared) Clear(id uint64) { s.suspect.CompareAndSwap(id&^Resent, 0) }

// Blame counts the end of the worker before this one as an attempt of the suspect or, if there is none, of all that Suspect was
// called for and that have no answer. Workers has been raised.
func (s *Shared) Blame() {
	id := s.suspect.Swap(0)
	if id != 0 {
		s.blamed.Store(s.Workers.Load())
	}
	for i := range s.attempts {
		a := &s.attempts[i]
		if a.suspected.Swap(0) != 0 && a.id.Load() != 0 && (id == 0 || id == a.id.Load()) {
			a.times.Add(1)
		}
	}
}

// Acquit forgets all suspicions, because this worker ends for another reason.
func (s *Shared) Acquit() {
	s.suspect.Store(0)
	for i := range s.attempts {
		s.attempts[i].suspected.Store(0)
	}
}

// EndAttempts notes that a request was answered.
func (s *Shared) EndAttempts(id uint64) {
	if id&Resent == 0 {
		return
	}
	id &^= Resent
	if a := s.findAttempt(id); a != nil && a.id.Load() == id {
		a.id.Store(0)
		a.suspected.Store(0)
	}
	s.suspect.CompareAndSwap(id, 0)
}

// attempt returns the counter of a request, or nil: see findAttempt.
func (s *Shared) attempt(id uint64) *attempt {
	a := s.findAttempt(id)
	if a != nil && a.id.Load() != id {
		s.begin(a, id)
	}
	return a
}

// begin lets a counter count for a request.
func (s *Shared) begin(a *attempt, id uint64) {
	a.id.Store(0)
	a.times.Store(0)
	a.suspected.Store(0)
	a.worker.Store(s.Workers.Load())
	a.id.Store(id)
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
