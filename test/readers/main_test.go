// Package readers tests what readers get: batches, by every path and in every language.
package readers

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
