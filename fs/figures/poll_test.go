package figures

import (
	"os"
	"testing"

	"batchfs/fs/state"
)

// A process that has opened next and read nothing yet has neither waited nor let next wait.
func TestReaderBeforeItsFirstRequest(t *testing.T) {
	memory, shared, err := state.New()
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	defer shared.Close()
	shared.Add(shared.NewNumber(), "train", 0, 0)
	state.NewHandles(shared).Open(1, uint32(os.Getpid()), false, 2)
	for _, readers := range readersOf(shared) {
		for _, r := range readers {
			t.Errorf("%+v", r)
		}
	}
}
