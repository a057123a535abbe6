package test

import (
	"os/exec"
	"testing"

	"batchfs/test/e2e"
)

// Each alert fires in the state that it is for, and in no other.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skipf("promtool, of the package prometheus, is not here: %v", err)
	}
	e2e.Run(t, promtool, "check", "rules", "../deploy/prometheus/alerts.yaml")
	e2e.Run(t, promtool, "test", "rules", "../deploy/prometheus/alerts_test.yaml")
}
