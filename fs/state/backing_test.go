package state

import (
	"slices"
	"strings"
	"syscall"
	"testing"
)

// What was chosen for a version stays, the one of the version before beside it, until they are ended.
func TestBackings(t *testing.T) {
	h := begin(t)
	e := &h.shared.Sequences[1]
	var ended []int32
	end := func(id int32) bool {
		ended = append(ended, id)
		return id != 30
	}
	chosen := func(v Version, want Backing) {
		t.Helper()
		if got := e.Backing(v); got != want {
			t.Errorf("version %d has %d, want %d", v, got, want)
		}
	}
	if got := e.ChooseBacking(0, 10); got != 10 {
		t.Errorf("the first choice is %d", got)
	}
	for _, b := range []Backing{11, SeveralFiles, -Backing(syscall.EPERM)} {
		if got := e.ChooseBacking(0, b); got != 10 {
			t.Errorf("the second choice of %d is %d", b, got)
		}
	}
	chosen(0, 10)
	chosen(1, 0)
	chosen(2, 0)
	e.ChooseBacking(1, 20)
	chosen(0, 10)
	chosen(1, 20)
	if last := e.LastBacking(); last != 20 {
		t.Errorf("the last is %d", last)
	}
	e.EndBackings(1, end)
	e.ChooseBacking(2, 30)
	chosen(0, 0)
	chosen(1, 20)
	chosen(2, 30)
	if got := e.ChooseBacking(0, 12); got != 0 {
		t.Errorf("of a version that is over, %d is chosen", got)
	}
	chosen(2, 30)
	e.EndBackings(3, end)
	chosen(1, 0)
	chosen(2, 30) // it could not be ended
	e.EndBackings(2, end)
	if !slices.Equal(ended, []int32{10, 30, 20}) {
		t.Errorf("ended are %d", ended)
	}
	h.shared.NewConnection()
	chosen(2, 0)
	if last := e.LastBacking(); last != 0 {
		t.Errorf("on a new connection, the last is %d", last)
	}
	// The low bits of versions are compared.
	const many = Version(1) << 32
	e.ChooseBacking(many-1, SeveralFiles)
	e.ChooseBacking(many, -Backing(syscall.ELOOP))
	chosen(many-1, SeveralFiles)
	chosen(many, -Backing(syscall.ELOOP))
	e.EndBackings(many, end)
	chosen(many-1, 0)
	chosen(many, -Backing(syscall.ELOOP))
	if why := e.LastBacking().String(); !strings.Contains(why, "stacked") {
		t.Errorf("it says %q", why)
	}
}
