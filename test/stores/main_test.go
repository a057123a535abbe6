// Package stores tests mounts whose tokens are objects of a store.
package stores

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
