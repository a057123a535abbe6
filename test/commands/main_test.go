// Package commands tests the commands, what they print, and how a mount begins and ends.
package commands

import (
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }
