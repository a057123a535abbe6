package rows

import (
	"fmt"
	"strings"
	"testing"

	parquetformat "github.com/parquet-go/parquet-go/format"

	"batchfs/cmd/batchfs/prepare/field"
)

func TestPrepareOldLZ4(t *testing.T) {
	c := newColumnReader(nil, &parquetformat.ColumnMetaData{Codec: parquetformat.Lz4}, 1)
	if _, err := c.ReadAt(nil, 0); err == nil || !strings.Contains(err.Error(), "compress it with zstd") {
		t.Errorf("got error %v", err)
	}
}

// An error about a wide table names only some of its columns.
func TestColumnsInErrors(t *testing.T) {
	wide := new(column)
	for i := range 3000 {
		wide.members = append(wide.members, &column{name: fmt.Sprint("c", i)})
	}
	if _, _, err := wide.find(field.New("text", 0)); err == nil || !strings.Contains(err.Error(), "only c0, c1, ") || !strings.HasSuffix(err.Error(), "c18, c19 and 2980 others: choose one with --field or --mask") {
		t.Errorf("error %v", err)
	}
}
