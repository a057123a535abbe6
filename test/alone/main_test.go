// Package alone has the tests that no other may run beside: their namespaces keep a copy of every mount, and they let ordinary users mount.
package alone

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Alone(m) }
