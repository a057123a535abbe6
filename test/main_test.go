// Package test checks the source as a whole: its imports, and what README and the pages say to type. The packages below it mount the built
// program and read it as users do.
package test

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
