// Package programs tests what programs and libraries get, in many languages, one after the other.
package programs

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
