package state

import (
	"fmt"
	"testing"
)

func TestNames(t *testing.T) {
	s := newTestHandles(t).shared
	var want []Name
	for i := range maxNames + 100 {
		n := Name{Dir: uint64(i), Name: fmt.Sprint("seed=", i)}
		s.RecordName(n)
		want = append(want, n)
	}
	for from := range s.NamesRecorded() {
		first := max(from, 101)
		if i, got := s.NameFrom(from); i != first || got != want[first] {
			t.Errorf("from %d: name %d, %v, want name %d, %v", from, i, got, first, want[first])
		}
	}
}
