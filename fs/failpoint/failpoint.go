// Package failpoint names the places in which a worker may die so that another must be able to go on from what it left.
// Tests stop there; a build with the tag faults dies there ([Hit] is set in faults.go).
package failpoint

// Hit is called at each failpoint with its name.
var Hit = func(name string) {}
