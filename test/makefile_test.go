package test

import (
	"regexp"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// The Makefile names no test that does not exist, which go test would not notice. make fuzz runs
// every fuzz target, and make soak also the tests of other packages that do more in a soak.
func TestMakefile(t *testing.T) {
	t.Parallel()
	exists, targets := map[string]bool{}, 0
	for line := range strings.Lines(e2e.Run(t, "grep", "-rEoh", "--include=*_test.go", `^func (Test|Fuzz)\w+`, "..")) {
		name := strings.Fields(line)[1]
		exists[name] = true
		if strings.HasPrefix(name, "Fuzz") {
			targets++
		}
	}
	for _, name := range regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(e2e.ReadPage(t, "Makefile"), -1) {
		if !exists[name] {
			t.Errorf("the Makefile runs %s, which does not exist", name)
		}
	}
	fuzzed := regexp.MustCompile(`(?m)^\d+x \./\S+ -fuzz \^(Fuzz\w+)\$$`).FindAllString(e2e.Run(t, "make", "-s", "-C", "..", "fuzz", "FUZZ=echo"), -1)
	e2e.Equal(t, "number of targets of make fuzz", len(fuzzed), targets)
	e2e.Contains(t, "make soak", e2e.Run(t, "make", "-n", "-C", "..", "soak"), ".ci/depending soak $(go list ./... | grep -v /test/soak$)")
	soaked := e2e.Run(t, "sh", "-ec", "cd .. && .ci/depending soak ./test/tokenfiles ./test/commands")
	for _, name := range []string{
		"TestKilledAtEveryChange", // calls InSoak
		"TestInterruptedMount",    // calls a function of e2e that does
		"TestPythonPackage",       // calls one that is generic
		"TestDoctorOfMounts",      // calls one that calls another
	} {
		e2e.Contains(t, "list of tests that do more in a soak", soaked, name)
	}
}
