package field

import (
	"fmt"
	"testing"
)

// A tally counts everything, however many names there are.
func TestTallyOfManyNames(t *testing.T) {
	var all Tally
	for i := range int64(3 * maxNames) {
		all.Add(fmt.Sprint("name ", i), 2)
	}
	if len(all) > maxNames+1 || all.Total() != 6*maxNames || *all[others] != 4*maxNames {
		t.Errorf("%d names with %d in all, %d of them %s", len(all), all.Total(), *all[others], others)
	}
}
