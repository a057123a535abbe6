package failure

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestKindOf(t *testing.T) {
	cause := Config.Wrap(io.EOF)
	for want, err := range map[*Kind]error{
		Other:  errors.New("a"),
		Config: Data.Wrap(fmt.Errorf("b: %w", cause)),
		Data:   errors.Join(io.EOF, Data.Wrap(io.EOF)),
	} {
		if got := KindOf(err); got != want {
			t.Errorf("%v has kind %s, want %s", err, got.Name, want.Name)
		}
	}
	if !errors.Is(cause, io.EOF) || cause.Error() != io.EOF.Error() || Config.Wrap(nil) != nil {
		t.Error("Wrap changes an error")
	}
}

// A program can tell the kinds apart by name and by exit status. Go ends with status 2 when it
// crashes, and a worker with 3.
func TestKindsDiffer(t *testing.T) {
	names, statuses := map[string]bool{}, map[int]bool{0: true, 2: true, 3: true}
	for _, k := range Kinds {
		if names[k.Name] || statuses[k.Status] || k.Status > 125 || Named(k.Name) != k {
			t.Errorf("kind %s with status %d is not unique", k.Name, k.Status)
		}
		names[k.Name], statuses[k.Status] = true, true
	}
	if Named("unknown") != Other {
		t.Error("an unknown name has a kind")
	}
}

// Names and statuses stay the same, because scripts use them, and workers end with them for
// supervisors of other versions. If this fails, mend the code. Only kinds may be added.
func TestKindsStay(t *testing.T) {
	kinds := map[string]int{}
	for _, k := range Kinds {
		kinds[k.Name] = k.Status
	}
	for name, status := range map[string]int{"failed": 1, "usage": 64, "data": 65, "no_fuse": 69, "mountpoint": 73, "busy": 75, "config": 78} {
		if kinds[name] != status {
			t.Errorf("the kind %s has the status %d, and had %d in earlier versions", name, kinds[name], status)
		}
	}
}
