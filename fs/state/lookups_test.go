package state

import (
	"slices"
	"testing"
)

func addSettings(s *Shared) int {
	number := s.NewNumber()
	s.Add(number, "train/seed=1", 0, 0)
	return number
}

// Each lookup is counted once, even if a worker dies at any failpoint and the kernel resends it.
func TestLookupsAreCountedOnce(t *testing.T) {
	all := failpointsIn(func() { s := newTestHandles(t).shared; s.CountLookup(addSettings(s), 2) })
	if len(all) < 3 {
		t.Fatalf("only %d failpoints: %s", len(all), all)
	}
	for _, point := range append(all, "after the reply was lost") {
		s := newTestHandles(t).shared
		number := addSettings(s)
		s.CountLookup(number, 2)
		killAt(point, 1, func() { s.CountLookup(number, 4) })
		s.ResumeLookups()
		s.CountLookup(number, 4|Resent)
		s.CountLookup(number, 6|Resent)
		if n := s.Sequences[number].Lookups.Load(); n != 3 {
			t.Errorf("killed at %q: %d lookups, want 3", point, n)
		}
	}
}

// A resent lookup is counted again if another sequence now has the number.
func TestLookupsOfANewSequence(t *testing.T) {
	s := newTestHandles(t).shared
	number := addSettings(s)
	s.RecordDirectory(number, 100)
	s.CountLookup(number, 2)
	s.Retire(number)
	s.Add(number, "train/seed=2", 0, 0)
	s.CountLookup(number, 2|Resent)
	if n := s.Sequences[number].Lookups.Load(); n != 1 {
		t.Errorf("%d lookups, want 1", n)
	}
}

// Directories returns all directories, unless there are too many.
func TestDirectories(t *testing.T) {
	s := newTestHandles(t).shared
	number := addSettings(s)
	check := func(when string, ok bool, want ...uint64) {
		t.Helper()
		if got, isOK := s.Directories(number); isOK != ok || !slices.Equal(got, want) {
			t.Errorf("%s: directories %v, complete: %v", when, got, isOK)
		}
	}
	s.RecordDirectory(number, 100)
	s.RecordDirectory(number, 200)
	s.RecordDirectory(number, 100)
	check("recorded", true, 100, 200)
	s.ResumeLookups()
	check("for the next worker", true, 100, 200)
	s.Remove(number)
	s.Add(number, "train/seed=2", 0, 0)
	check("of a new sequence", true)
	for i := range uint64(maxDirectories) {
		s.RecordDirectory(number, 100+i)
	}
	all, _ := s.Directories(number)
	check("maxDirectories", true, all...)
	s.RecordDirectory(number, 200)
	check("one more", false, all...)
}

// FreeNumbers returns retired numbers in the order in which they were retired, even if a worker
// dies while it retires one.
func TestRetire(t *testing.T) {
	s := newTestHandles(t).shared
	var numbers []int
	for range 5 {
		numbers = append(numbers, addSettings(s))
	}
	s.Remove(numbers[0])
	s.Retire(numbers[3])
	s.Retire(numbers[1])
	killAt("retire", 1, func() { s.Retire(numbers[2]) })
	if s.Sequences[numbers[2]].Lookups.Load() != 0 {
		t.Error("a worker that died while it retired a number left lookups")
	}
	s.Remove(numbers[2]) // the next worker does this
	free, retired := s.FreeNumbers()
	if want := []int{numbers[3], numbers[1], numbers[2]}; !slices.Equal(free, numbers[:1]) || !slices.Equal(retired, want) {
		t.Errorf("free %v, retired %v, want %v and %v", free, retired, numbers[:1], want)
	}
	s.Add(numbers[3], "train/seed=3", 0, 0)
	s.Remove(numbers[3])
	if free, _ := s.FreeNumbers(); !slices.Contains(free, numbers[3]) {
		t.Error("the number is still retired after another sequence had it")
	}
}
