// Package soak has the tests that last as long as they are told to: storms, leaks, comparisons with references.
package soak

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
