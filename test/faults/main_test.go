// Package faults tests what readers see while files change or fail, and processes die.
package faults

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
