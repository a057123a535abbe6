package sampler

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"batchfs/cache"
	"batchfs/cache/array"
)

func TestElementsThatHoldAToken(t *testing.T) {
	const b, T = 3, 4
	for layout, want := range map[Layout]string{XY: "[x[2, 3] y[2, 2]]", Tokens: "[tokens[2, 3]]"} {
		q := openSequence(t, writeFiles(t, 2, 13), cache.Options{DType: array.Uint16}, Settings{BatchSize: b, BlockSize: T, Layout: layout, Order: Sequential})
		if got := fmt.Sprint(q.NumPyExpressions(2, 3)); got != want {
			t.Errorf("token 3 of row 2 is in %s, want %s", got, want)
		}
		if got := slices.Concat(q.NumPyExpressions(0, -1), q.NumPyExpressions(0, T+1)); len(got) > 0 {
			t.Errorf("tokens outside the row are in %v", got)
		}
		batch, holders := readBatch(t, q, 0), map[int64]map[string]bool{}
		for _, a := range q.Batch().Arrays {
			for j, row := range batchRows(batch[a.Offset:][:a.Bytes()], a.Shape[1]) {
				for i, token := range row {
					if holders[token] == nil {
						holders[token] = map[string]bool{}
					}
					holders[token][fmt.Sprintf("%s[%d, %d]", a.Name, j, i)] = true
				}
			}
		}
		for pos := range int64(13) {
			got := map[string]bool{}
			for _, hit := range find(t, q, 0, pos, 0, nil) {
				if k, _, j := q.BatchOf(hit.Row); k == 0 {
					for _, e := range q.NumPyExpressions(j, hit.Index) {
						got[e] = true
					}
				}
			}
			if !reflect.DeepEqual(got, holders[pos]) {
				t.Errorf("%s: token %d is said to be in %v, and is in %v", layout, pos, got, holders[pos])
			}
		}
	}
}
