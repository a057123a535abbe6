// Package readers tests what readers get that meet: numbers of next, settings in paths, seeks, rights.
package readers

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
